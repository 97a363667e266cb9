"""What a node is told: units, containerd, the network of its pods, the kubelet. Data and pure text.

`FILES` are on the disk; `of_this_boot` is what a test's own control plane and registry decide. The
host is at 10.0.2.2, through QEMU's user network. There is no kube-proxy: the address of the service
`kubernetes` is sent to the API server by two rules of the node's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

NAME: Final = "real-node"  # of the node
REGISTRY: Final = "registry.example.com"  # what images are called by; containerd knows where it is
SANDBOX: Final = f"{REGISTRY}/pause:1"
HOST: Final = "10.0.2.2"
_OWN = "10.0.2.15"
_SERVICE = "10.0.0.1"  # the first address of --service-cluster-ip-range
_PODS = "10.88.0.0/16"

ENABLED = ("agent.service", "network.service", "containerd.service", "kubelet.service")
# What a machine that lives for minutes has no use for.
MASKED = (
    "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer",
    "e2scrub_reap.service", "fstrim.timer", "getty@tty1.service", "serial-getty@ttyS0.service",
    "systemd-update-utmp.service", "systemd-update-utmp-runlevel.service",
    "systemd-pcrphase.service", "systemd-random-seed.service", "systemd-journal-flush.service",
)  # fmt: skip

_AGENT = """\
[Unit]
Description=The test's hand in the machine
[Service]
ExecStart=/usr/bin/python3 -S /payload/agent.py
Environment=PYTHONPATH=/payload/python PYTHONDONTWRITEBYTECODE=1
KillMode=process
"""

_NETWORK = f"""\
[Unit]
Description=QEMU's user network, and the way to the API server
Before=containerd.service kubelet.service
[Service]
Type=oneshot
RemainAfterExit=yes
EnvironmentFile=/etc/nodeside-node
ExecStart=/usr/sbin/ip link set lo up
ExecStart=/usr/sbin/ip address add {_OWN}/24 dev eth0
ExecStart=/usr/sbin/ip link set eth0 up
ExecStart=/usr/sbin/ip route add default via {HOST}
ExecStart=/usr/sbin/sysctl -q -w net.ipv4.ip_forward=1
ExecStart=/usr/sbin/iptables -t nat -A PREROUTING -d {_SERVICE} -p tcp --dport 443 \
 -j DNAT --to-destination {HOST}:${{API_PORT}}
ExecStart=/usr/sbin/iptables -t nat -A OUTPUT -d {_SERVICE} -p tcp --dport 443 \
 -j DNAT --to-destination {HOST}:${{API_PORT}}
"""

_CONTAINERD_UNIT = """\
[Unit]
Description=containerd
After=network.service
[Service]
Type=notify
ExecStart=/usr/local/bin/containerd
Delegate=yes
KillMode=process
OOMScoreAdjust=-999
LimitNOFILE=1048576
"""

_KUBELET_UNIT = f"""\
[Unit]
Description=kubelet
After=containerd.service
Requires=containerd.service
[Service]
ExecStart=/usr/local/bin/kubelet --config=/etc/kubernetes/kubelet.yaml \
 --kubeconfig=/etc/kubernetes/kubelet.kubeconfig --node-ip={_OWN} --v=1
Restart=on-failure
RestartSec=2
"""

_CONTAINERD = f"""\
version = 3
[plugins.'io.containerd.cri.v1.images']
  discard_unpacked_layers = true
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{SANDBOX}"
[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = "/etc/containerd/certs.d"
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "/etc/cni/net.d"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = true
"""

_POD_NETWORK: Mapping[str, Any] = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": _PODS}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}

_KUBELET: Mapping[str, Any] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},  # nobody reaches its port from outside
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
    "cgroupDriver": "systemd",
    "resolvConf": "/etc/resolv.conf",
    "makeIPTablesUtilChains": False,
    "clusterDNS": ["10.0.0.10"],  # nobody answers there; without one, each pod is complained about
}

FILES: Mapping[str, str] = {
    "etc/hostname": f"{NAME}\n",
    "etc/hosts": f"127.0.0.1 localhost\n{_OWN} {NAME}\n",
    "etc/resolv.conf": f"nameserver {HOST}\n",
    "etc/machine-id": "6e6f6465736964652d7265616c2d6e6f\n",  # else systemd thinks of a first boot
    "etc/fstab": "",
    "etc/systemd/system/agent.service": _AGENT,
    "etc/systemd/system/network.service": _NETWORK,
    "etc/systemd/system/containerd.service": _CONTAINERD_UNIT,
    "etc/systemd/system/kubelet.service": _KUBELET_UNIT,
    "etc/containerd/config.toml": _CONTAINERD,
    "etc/cni/net.d/10-pods.conflist": json.dumps(_POD_NETWORK, indent=2) + "\n",
    "etc/kubernetes/kubelet.yaml": json.dumps(_KUBELET, indent=2) + "\n",
}


def of_this_boot(kubeconfig: str, api_port: int, registry_port: int) -> dict[str, str]:
    """Files of the node, by path from its root."""
    where = f'[host."http://{HOST}:{registry_port}"]\n  capabilities = ["pull", "resolve"]\n'
    return {
        "etc/nodeside-node": f"API_PORT={api_port}\n",
        "etc/kubernetes/kubelet.kubeconfig": kubeconfig,
        f"etc/containerd/certs.d/{REGISTRY}/hosts.toml": where,
    }
