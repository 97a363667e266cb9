"""The toolkit sidecar: it compiles what the driver container asks for.

It lives in an image that is not ours (a Driver Toolkit: headers, gcc, make; no Python), so it is
stdlib only, runs on the Python that the driver image puts into the shared directory, and is one
file there, `toolkit.pyz`. It has no privilege, no key, no token and no need of a network. It talks
to the driver container by the shared directory alone; `nodeside.shared` draws that protocol.

    cli ── sidecar ── builder ── toolchain (headers, compiler), jobs, memory
                              ├─ recipe (kbuild, command), dkms (dkms_conf)
                              ├─ confinement (descendants, buildlog)   where vendor code runs
                              └─ collect
"""
