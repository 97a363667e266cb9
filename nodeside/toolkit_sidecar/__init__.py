"""The toolkit sidecar: compiles modules on request of the driver container.

It runs in an image that is not ours: a Driver Toolkit with headers, gcc and make, but no Python. It
is stdlib only, runs on the Python that the driver image puts into the shared directory, and is a
single file there, `toolkit.pyz`. It has no privilege, no key and no token, and a build opens no
socket. It communicates with the driver container through the shared directory alone;
`nodeside.protocol.shared_directory` documents that protocol.

    cli ── supervisor ── sidecar ── builder ── toolchain (headers, compiler), jobs, memory
                                             ├─ recipe (kbuild, command), dkms (dkms_conf), uname
                                             ├─ extra_symbols   of other drivers, for modpost
                                             ├─ confinement (descendants, no_network)
                                             ├─ buildlog (firsterror, remedies), advice
                                             └─ collect, tree, failure
"""
