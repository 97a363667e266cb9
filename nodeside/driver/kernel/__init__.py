"""Modules going into the kernel and out of it.

    checks                refusals that can be known before a load
    conflicts             in-tree drivers that hold the hardware, and how they let go
    firmware              firmware files, put where the kernel looks
    loader                finit_module and delete_module, with deadlines
    sequence              several modules: all, or none
    unload                what has to go, in which order, and what stands in the way
    errors                the kernel's refusals in words: who holds it, what the log said

The only place that loads or unloads.
"""
