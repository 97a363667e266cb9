"""The services of a driver: daemons of its image that run as long as it is loaded.

    services              all services of a driver: started in order, stopped in reverse
    service               one of them: its process, its output, whether it is ready
    output                what a service or a hook writes
    processes             every process of a service, also of one that another process started

They are children of `nodeside driver run` and live in its container, so they end with it at the
latest. While it runs, they are started and stopped under the lock of their driver only.
"""
