"""The ladder: the desired driver, and the rungs that may deliver it.

    task                  one driver on one node for one kernel, resolved
    variants              which build a kernel gets
    exported_symbols      what the modules of a loaded driver export to other drivers
    plan                  pure: which rung to try next, and whether the loaded modules are right
    rungs                 tries one rung: cache, prebuilt sources, a build
    compatible            another kernel's bundle whose symbols all match
    usable                whether a bundle may be used here
    assemble              makes a bundle from the output of a build

A look at a rung leaves a verified bundle in the cache and changes nothing else.
"""
