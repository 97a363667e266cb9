"""The project's own benchmark: `make bench`, whose page is docs/benchmarks.md.

It measures what the project promises, side by side with what people do today, in one run on one
machine. It stands on the proving ground of `nodeside try` (kernels, root file systems, the
throwaway machine) and is no part of what is installed. From the bottom to the top:

    samples       numbers: median, spread, ratios of what was measured in the same round
    page          goals, sections, and the Markdown page made of them
    room          a command in a root file system on this machine, and how long it took
    ground        kernel, root file systems, nodeside as it is in a driver image
    candidates    the drivers that are built; contenders: the three ways to build them
    filenode      a node made of files; sidecar, lines, repeat: looking at processes from outside
    builds, handoff, starts, footprint, failure      the measurements, one section each
    surroundings  the machine, in words
    cluster/      the controller at 100, 1,000 and 5,000 nodes; a part of its own, with its own map

Needs root, as `nodeside try` does; the cluster's part does not.
"""
