"""The cluster side: what a controller and its nodes cost at 100, 1,000 and 5,000 nodes.

A real control plane on loopback (tests/controlplane), nodes simulated by KWOK, the controller as a
process of its own with the rights that it is installed with, the node side played by its own
announcing code with real pod-bound tokens. From the bottom to the top:

    usage      processor time and memory of a process, and its requests
    speakers   the node side of all nodes, in one process of its own
    stage      control plane, nodes in pools, tags, Drivers; controllers that come and go
    scenario   what is done with them, and what was measured
    looks      the planner alone, with many Drivers: no control plane, a program of its own
    report     goals and tables out of that; pure

Needs no root and no kernel; it runs alone with `python -m bench --only cluster`.
"""
