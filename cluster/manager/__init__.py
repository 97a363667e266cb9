"""`nodeside-cluster run`: leader election, the loop, probes and metrics.

manager               wires it all and ends it
probes                /healthz and /readyz
metrics, metrics_server, metrics_auth, tls    Prometheus metrics over HTTPS
"""
