"""The real Helm, for tests: the machine's if it fits, else built from its Go module, once.

`go.mod` is apart from that of tests/controlplane: they need other versions of the same libraries,
and nobody builds a control plane anew because of Helm.
"""
