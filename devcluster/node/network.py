"""Addresses of the cluster, and the commands that build its network.

Everything lies in the node's own network namespace but one end of a veth pair, over which the host
reaches the API server. The namespace has no default route: what runs in the cluster reaches no
other machine. When the namespace ends, the kernel removes the pair. Pure but for `connect`.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.shell import run, succeeds

NODE_ADDRESS = "10.85.0.1"  # the bridge: EndpointSlices refuse loopback addresses
# So many that none is used twice: a pod with the address of one that is gone would wait some ten
# seconds for answers, until those who know the other's hardware address have forgotten it.
_POD_BITS = 17
POD_RANGE = f"10.85.0.0/{_POD_BITS}"
SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
DNS_ADDRESS = "10.96.0.10"
API_PORT = 6443
DOMAIN = "cluster.local"


@dataclass(frozen=True, slots=True)
class Uplink:
    """The veth pair between the host and the namespace; each instance has its own /30 of
    10.85.255.0/24.
    """

    link: str
    host_address: str
    node_address: str

    @property
    def api_url(self) -> str:
        return f"https://{self.node_address}:{API_PORT}"


def uplink(instance: int) -> Uplink:
    base = 4 * instance
    return Uplink(f"atomdev{instance}", f"10.85.255.{base + 1}", f"10.85.255.{base + 2}")


def commands_in_namespace(link: Uplink) -> list[list[str]]:
    return [
        ["ip", "link", "set", "lo", "up"],
        ["ip", "link", "add", "cni0", "type", "bridge"],
        ["ip", "addr", "add", f"{NODE_ADDRESS}/{_POD_BITS}", "dev", "cni0"],
        ["ip", "link", "set", "cni0", "up"],
        ["ip", "addr", "add", f"{link.node_address}/30", "dev", "eth0"],
        ["ip", "link", "set", "eth0", "up"],
        # The kernel wants a route before kube-proxy's rules rewrite a Service's address.
        ["ip", "route", "add", SERVICE_RANGE, "dev", "cni0"],
        ["sysctl", "-qw", "net.ipv4.ip_forward=1"],
    ]


def draw_hardware_address() -> str:
    """Draw a locally administered address, which tells a link from another of its name."""
    return ":".join(f"{byte:02x}" for byte in (0x02, *secrets.token_bytes(5)))


def hardware_address(link: str) -> str | None:
    """Read a link's address on this host; None when there is no such link."""
    try:
        return Path(f"/sys/class/net/{link}/address").read_text().strip()
    except OSError:
        return None


def connect(link: Uplink, address: str, node_pid: int) -> None:
    """Builds the pair and the namespace's side for a node process that has just started; `address`:
    the hardware address of the host's end.
    """
    if hardware_address(link.link) is not None:
        raise DevclusterError(
            f"the network link {link.link} exists already but belongs to no cluster of this state "
            "folder; "
            "another cluster may run with another ATOM_DEVCLUSTER_STATE: take it down there, or "
            f"`ip link del {link.link}`"
        )
    run(
        [
            "ip",
            "link",
            "add",
            link.link,
            "address",
            address,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            str(node_pid),
        ]
    )
    run(["ip", "addr", "add", f"{link.host_address}/30", "dev", link.link])
    run(["ip", "link", "set", link.link, "up"])
    inside = ["nsenter", f"--target={node_pid}", "--net", "--"]
    for command in commands_in_namespace(link):
        run([*inside, *command])
    # Replies between two pods of one bridge must pass the rules that rewrite Service addresses.
    if not succeeds([*inside, "sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=1"]):
        succeeds(["modprobe", "br_netfilter"])
        run([*inside, "sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=1"])


def cni_config(ipam_folder: Path) -> str:
    """The CNI configuration list: one bridge, no masquerading, host ports."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,  # a pod may reach itself through its Service
        "ipam": {
            "type": "host-local",
            "dataDir": str(ipam_folder),
            "ranges": [[{"subnet": POD_RANGE}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps(
        {"cniVersion": "1.0.0", "name": "dev", "plugins": [bridge, portmap]}, indent=1
    )
