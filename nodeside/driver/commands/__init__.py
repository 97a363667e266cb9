"""The verbs of `nodeside driver`, and their output.

    options, outcome, report, console     shared: flags, results, tables, build output
    run, load, unload, wait               what a pod does, and the same by hand
    symbols                               the symbols of other drivers' bundles
    bundles, job                          fetch, build, publish; the two halves of a build Job
    services                              show what runs of the services, and stop it
    dry_run, steps                        what the ladder would do; steps of a dry run in words
    status, devices, doctor, env          read-only

The dry run of a verb stands beside it: `would_load` below `load`. `driver.cli` imports each file
when its verb is called.
"""
