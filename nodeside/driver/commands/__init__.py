"""The verbs of `nodeside driver`, one file each, and what they print.

    options, outcome, report, console     shared: flags, results, tables, the build's output
    run, load, unload, wait               what a pod does, and the same by hand
    bundles, job                          fetch, build, publish; the two halves of a build Job
    dry_run, status, doctor, env          looks that change nothing

`driver.cli` imports each of them when it is called.
"""
