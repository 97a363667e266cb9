"""The saboteur that stays: `make chaos`, seeded, reproducible and bounded.

Read in this order:

    __main__      the command: what is tried, how often, with which seed
    ledger        what was tried and found; a finding names the seed and the round
    nodes         a node with drivers in a throwaway machine, which is started, killed and judged
    judging       what must hold on a node after whatever was done to it
    kills         SIGKILL of any process of driver and sidecar, at any moment
    power_cuts    power that goes in the middle of loads, builds, cache writes and `publish`
    pairs         two drivers, one after the other, with a daemon: kills and power cuts
    scarcity      disks that are full, read-only or broken; memory, processes, clocks
    mutations     documents and bytes, damaged on purpose
    attempts      one try in a child with a deadline and little memory
    bundles       damaged and forged bundles in stores and caches, outside and inside a machine
    stores        servers that answer anything
    histories     of a cluster in the model: people, nodes that lie, reboots, refused writes
    leaders       of the controller that are killed, on a real control plane

A short run is part of the tests (tests/chaos/test_chaos.py); a long one is for a release, and its
figures stand in docs/reliability.md. The moments are random, so a seed repeats the order of events
and not their microseconds.
"""
