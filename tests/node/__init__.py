"""A real node for tests: a throwaway machine with systemd, containerd, runc and a kubelet.

`go.mod` is for containerd alone: it needs other versions of the same libraries than Kubernetes. The
kubelet is built where the control plane is, out of the same modules.
"""
