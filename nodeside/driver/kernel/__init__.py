"""Loading modules into the kernel and unloading them.

    checks                checks before a load, for refusals that can be predicted
    boot_parameters       parameters of driver.yaml and of the kernel's command line
    dependencies          whether something provides a module's symbols, and what loads first
    in_tree_effects       what a load means for in-tree modules: their parameters, shut-out users
    conflicts             in-tree drivers that hold the hardware: unbind, remove, restore
    firmware              firmware files in the kernel's search path
    loader                finit_module and delete_module, with deadlines
    sequence              load several modules: all or none
    unload                which modules to unload, in which order, and the obstacles
    refusals              why the kernel refused a load: errno, its log lines, the node
    errors                the exceptions of a load or an unload

The only package that loads or unloads modules.
"""
