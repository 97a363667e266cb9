"""What a node is told: units, containerd, the network of its pods, the kubelet. Data and pure text.

`FILES` are on the disk; `of_this_boot` is what depends on the node, the API server and the
registry. There is no kube-proxy: the address of the service `kubernetes` is sent to the API server
by two rules of the node's own.

In an emulated machine, a node with five pods at rest used more than half of its processor to
measure itself: containerd asked each shim every second, the kubelet read each control group every
ten. Nobody asks this node for such figures. What the kubelet needs to evict pods from a full disk,
it measures when it looks.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

REGISTRY: Final = "registry.example.com"  # what images are called by; containerd knows where it is
SANDBOX: Final = f"{REGISTRY}/pause:1"
_SERVICE = "10.0.0.1"  # the first address of --service-cluster-ip-range
_NEVER: Final = "24h"  # in the life of a node
IMAGES_DISK: Final = "/dev/vdd"  # the fourth disk, after those of node, kernel and payload


@dataclass(frozen=True)
class NodeAddresses:
    """A node in its network; it finds API server and registry at these ports of `host`.

    `pods` is the subnet of its pods, `routes` has the node by the subnet of other nodes' pods.
    """

    name: str
    address: str
    host: str
    pods: str
    api_port: int
    registry_port: int
    routes: Mapping[str, str]


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

_NETWORK = """\
[Unit]
Description=The network, and the way to the API server
Before=containerd.service kubelet.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -e /etc/nodeside-network
"""

# Programs in Go collect garbage less often, send themselves no signal every 10 ms of an emulated
# processor, and look after their threads every 10 ms, not every 20 µs.
_GO: Final = "GOGC=400 GODEBUG=asyncpreemptoff=1"
_SLACK: Final = "10ms"

_CONTAINERD_UNIT = f"""\
[Unit]
Description=containerd
After=network.service
[Service]
Type=notify
ExecStart=/usr/local/bin/containerd
Environment={_GO}
Delegate=yes
KillMode=process
OOMScoreAdjust=-999
LimitNOFILE=1048576
TimerSlackNSec={_SLACK}
"""

_KUBELET_UNIT = f"""\
[Unit]
Description=kubelet
After=containerd.service
Requires=containerd.service
[Service]
EnvironmentFile=/etc/nodeside-node
Environment={_GO}
ExecStart=/usr/local/bin/kubelet --config=/etc/kubernetes/kubelet.yaml \
 --kubeconfig=/etc/kubernetes/kubelet.kubeconfig --node-ip=${{NODE_IP}} --v=1 \
 --housekeeping-interval={_NEVER}
Restart=on-failure
RestartSec=2
TimerSlackNSec={_SLACK}
"""

_CONTAINERD = f"""\
version = 3
[plugins.'io.containerd.cri.v1.images']
  discard_unpacked_layers = true
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{SANDBOX}"
[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = "/etc/containerd/certs.d"
[plugins.'io.containerd.cri.v1.runtime']
  stats_collect_period = "{_NEVER}"
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "/etc/cni/net.d"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = true
"""

_KUBELET: Mapping[str, Any] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {
        "anonymous": {"enabled": False},
        "webhook": {"enabled": True},
        "x509": {"clientCAFile": "/etc/kubernetes/ca.crt"},
    },
    "authorization": {"mode": "Webhook"},
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
    "cgroupDriver": "systemd",
    "resolvConf": "/etc/resolv.conf",
    "makeIPTablesUtilChains": False,
    "volumeStatsAggPeriod": "-1s",
    "containerLogMonitorInterval": _NEVER,
    "clusterDNS": ["10.0.0.10"],  # nobody answers there; without one, each pod is complained about
}

FILES: Mapping[str, str] = {
    "etc/systemd/system/agent.service": _AGENT,
    "etc/systemd/system/network.service": _NETWORK,
    "etc/systemd/system/containerd.service": _CONTAINERD_UNIT,
    "etc/systemd/system/kubelet.service": _KUBELET_UNIT,
    "etc/containerd/config.toml": _CONTAINERD,
    "etc/kubernetes/kubelet.yaml": json.dumps(_KUBELET, indent=2) + "\n",
}


def of_this_boot(at: NodeAddresses, kubeconfig: str, ca: str) -> dict[str, str]:
    """Files of the node, by path from its root. `ca` signs the clients of its kubelet."""
    where = f'[host."http://{at.host}:{at.registry_port}"]\n  capabilities = ["pull", "resolve"]\n'
    return {
        "etc/hostname": f"{at.name}\n",
        "etc/hosts": f"127.0.0.1 localhost\n{at.address} {at.name}\n",
        "etc/resolv.conf": f"nameserver {at.host}\n",
        # Without one, systemd thinks of a first boot.
        "etc/machine-id": f"{uuid.uuid5(uuid.NAMESPACE_DNS, at.name).hex}\n",
        "etc/fstab": f"{IMAGES_DISK} /var/lib/containerd ext4 noatime 0 0\n",
        "etc/nodeside-node": f"NODE_IP={at.address}\n",
        "etc/nodeside-network": _network(at),
        "etc/cni/net.d/10-pods.conflist": json.dumps(_pod_network(at.pods), indent=2) + "\n",
        "etc/kubernetes/kubelet.kubeconfig": kubeconfig,
        "etc/kubernetes/ca.crt": ca,
        f"etc/containerd/certs.d/{REGISTRY}/hosts.toml": where,
        "etc/containers/registries.conf.d/registry.conf": _podman(at),
    }


def _podman(at: NodeAddresses) -> str:
    """https://github.com/containers/image/blob/main/docs/containers-registries.conf.5.md"""
    where = f'location = "{at.host}:{at.registry_port}"\ninsecure = true\n'
    return f'[[registry]]\nprefix = "{REGISTRY}"\n{where}'


def _network(at: NodeAddresses) -> str:
    """A shell script."""
    to_api = f"-d {_SERVICE} -p tcp --dport 443 -j DNAT --to-destination {at.host}:{at.api_port}"
    return "\n".join(
        [
            "ip link set lo up",
            f"ip address add {at.address}/24 dev eth0",
            "ip link set eth0 up",
            f"ip route add default via {at.host}",
            *(f"ip route add {pods} via {node}" for pods, node in at.routes.items()),
            "sysctl -q -w net.ipv4.ip_forward=1",
            *(f"iptables -t nat -A {chain} {to_api}" for chain in ("PREROUTING", "OUTPUT")),
            "",
        ]
    )


def _pod_network(pods: str) -> Mapping[str, Any]:
    """https://www.cni.dev/plugins/current/main/bridge/"""
    ranges = {
        "type": "host-local",
        "ranges": [[{"subnet": pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True, "ipam": ranges}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}
