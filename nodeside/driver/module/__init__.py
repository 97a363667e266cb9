"""The kernel module as a file: what a .ko says of itself, and whether it fits a kernel.

    elf, compression      the container formats, read with limits
    modulefile            one .ko, read: name, vermagic, imports, parameters, build-id
    signature, signing    the appended signature: parsed, verified, made
    parameters            the parameters a module takes
    symvers               Module.symvers: which symbols a kernel offers, and the comparison
    load_order            which module has to be loaded before which

Reads files and nothing else. Vendor files are read in a child with limits (`driver.child`).
"""
