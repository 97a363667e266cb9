"""A real Kubernetes control plane on loopback, for tests, benchmarks and people.

    go.mod, go.sum   which versions; no Go of ours, only the names of published programs
    binaries         the programs: from the machine if their version fits, else built once, cached
    certificates     a throwaway CA and what it signs, kubeconfigs
    components       what each program is started with, and how to see that it is ready
    controlplane     start them in order, stop them in order, leave nothing
    api_server       requests and kubectl of its administrator; waiting
    nodes            simulated nodes (KWOK) with a kernel, an operating system and labels

Tests take the fixtures of `tests/cluster/conftest.py`; a person types `make control-plane`.
There is no kubelet in it: a node's pods run as far as KWOK says so.
"""
