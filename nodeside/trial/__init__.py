"""The trial: a throwaway virtual machine that plays the node (`nodeside try`).

It makes everything it needs from Debian packages, caches the results outside the checkout, and
leaves nothing running or mounted. From the bottom to the top:

    cache, progress, errors    the cache, progress on stderr, exceptions
    architecture, emulation    what is different about amd64 and arm64; running the other one here
    vendor_tree                root's copy of a directory that a vendor wrote
    owned_place                a user's directory, which is written to as that user
    debian/                    Debian's packages, kernels and root file systems
    machine/                   one kernel as files, one running machine, the agent inside it
    host/                      the same containers on this host: large builds, packed Python
    target/                    what to try: a driver.yaml, a source without one, a package
    ordinary_kernel            what a driver lacks in the kernel of a trial, and not in others
    workshop                   the interface to all of the above, also for the tests
    report                     the node side's report, checked
    pod, result, privilege     the node's pod in the machine; the printed result; becoming root
    report_files               the result as a page, as JUnit and as JSON
    scaffold                   the files that `nodeside init` writes
    watch                      a machine that stays, and a trial of each saved change
    session                    the steps of `nodeside try`
    cli, init                  the two command lines

Nothing that runs on a real node imports this package.
"""
