"""The ladder: what is wanted, and the rungs that may deliver it.

    task                  one driver on one node for one kernel, resolved
    plan                  pure: which rung to look at next, and whether what is loaded is right
    rungs                 the looks: cache, prebuilt sources, a build
    compatible            another kernel's bundle whose symbols all fit
    usable                whether a bundle that was found may be used here
    assemble              a bundle from what a build delivered

A look leaves a verified bundle in the cache and changes nothing else.
"""
