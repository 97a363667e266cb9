"""Kernel module files: the metadata in a .ko, and whether a module fits a kernel.

    elf, compression      the container formats, read with limits
    modulefile            parses one .ko: name, vermagic, imports, parameters, build-id
    signature, signing    the appended signature: parsing, verifying, signing
    parameters            checks parameter names and values against a module
    symvers               Module.symvers: the symbols a kernel exports, and the comparison
    load_order, softdeps  orders the modules of a driver by their dependencies; the soft ones

Only touches files. Vendor files are read in a child process with limits (`nodeside.system.child`).
"""
