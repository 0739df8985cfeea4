"""Command lines of the cluster's programs, and their order: pure functions of the settings and the
built programs.

Called by `cluster`; carried out by `supervisor`, which starts a component when those it comes after
answer their probes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from devcluster.node import network
from devcluster.node.configs import KUBELET_FOLDER
from devcluster.node.pki import FRONT_PROXY, FRONT_PROXY_CLIENT
from devcluster.settings import Settings

ETCD_URL = "http://127.0.0.1:2379"
PYTHON = "{python}"  # stands for the interpreter of the supervisor


@dataclass(frozen=True, slots=True)
class Probe:
    """Describe how the supervisor sees that a component serves: `tcp` host:port, `unix` path, or
    `https` URL answering 200.
    """

    kind: str
    target: str


@dataclass(frozen=True, slots=True)
class Component:
    name: str
    argv: tuple[str, ...]
    after: tuple[str, ...] = ()
    probe: Probe | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def all_components(
    settings: Settings, programs: Mapping[str, Path], node_name: str
) -> list[Component]:
    return [
        _etcd(settings, programs["etcd"]),
        _containerd(settings, programs["containerd"]),
        _apiserver(settings, programs["kube-apiserver"]),
        _controller_manager(settings, programs["kube-controller-manager"]),
        _scheduler(settings, programs["kube-scheduler"]),
        _kubelet(settings, programs["kubelet"], node_name),
        _proxy(settings, programs["kube-proxy"], node_name),
        Component(
            "fake-nodes",
            (PYTHON, "-m", "devcluster.heartbeat", str(settings.state)),
            after=("apiserver",),
        ),
    ]


def _etcd(settings: Settings, program: Path) -> Component:
    argv = (
        str(program),
        f"--data-dir={settings.state / 'etcd'}",
        f"--listen-client-urls={ETCD_URL}",
        f"--advertise-client-urls={ETCD_URL}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",  # the state does not outlive the node process anyway
        "--log-level=warn",
    )
    return Component("etcd", argv, probe=Probe("tcp", "127.0.0.1:2379"))


def _containerd(settings: Settings, program: Path) -> Component:
    argv = (str(program), "--config", str(settings.state / "containerd.toml"))
    return Component("containerd", argv, probe=Probe("unix", str(settings.containerd_socket)))


def _apiserver(settings: Settings, program: Path) -> Component:
    pki = settings.pki
    argv = (
        str(program),
        f"--etcd-servers={ETCD_URL}",
        f"--secure-port={network.API_PORT}",
        f"--advertise-address={network.NODE_ADDRESS}",
        f"--client-ca-file={pki}/ca.crt",
        *_aggregation_flags(settings),
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--service-account-key-file={pki}/service-accounts.pub",
        f"--service-account-signing-key-file={pki}/service-accounts.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--service-cluster-ip-range={network.SERVICE_RANGE}",
        f"--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={pki}/apiserver-kubelet-client.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP,Hostname",
        "--allow-privileged=true",
        "--endpoint-reconciler-type=lease",
    )
    probe = Probe("https", f"https://127.0.0.1:{network.API_PORT}/readyz")
    return Component("apiserver", argv, after=("etcd",), probe=probe)


def _aggregation_flags(settings: Settings) -> tuple[str, ...]:
    """Return how API servers behind this one know whom it speaks for."""
    pki = settings.pki
    return (
        f"--requestheader-client-ca-file={pki}/{FRONT_PROXY}.crt",
        f"--requestheader-allowed-names={FRONT_PROXY_CLIENT}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki}/{FRONT_PROXY_CLIENT}.crt",
        f"--proxy-client-key-file={pki}/{FRONT_PROXY_CLIENT}.key",
    )


def _controller_manager(settings: Settings, program: Path) -> Component:
    argv = (
        str(program),
        *_client_flags(settings, "controller-manager"),
        "--leader-elect=false",
        f"--service-account-private-key-file={settings.pki}/service-accounts.key",
        f"--root-ca-file={settings.pki}/ca.crt",
        "--use-service-account-credentials=true",
        f"--cluster-signing-cert-file={settings.pki}/ca.crt",
        f"--cluster-signing-key-file={settings.pki}/ca.key",
    )
    return Component(
        "controller-manager", argv, after=("apiserver",), probe=Probe("tcp", "127.0.0.1:10257")
    )


def _scheduler(settings: Settings, program: Path) -> Component:
    argv = (str(program), *_client_flags(settings, "scheduler"), "--leader-elect=false")
    return Component("scheduler", argv, after=("apiserver",), probe=Probe("tcp", "127.0.0.1:10259"))


def _client_flags(settings: Settings, role: str) -> tuple[str, ...]:
    kubeconfig = settings.state / f"{role}.kubeconfig"
    return tuple(
        f"--{flag}={kubeconfig}"
        for flag in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    )


def _kubelet(settings: Settings, program: Path, node_name: str) -> Component:
    argv = (
        str(program),
        f"--config={settings.state / 'kubelet.json'}",
        f"--kubeconfig={settings.state / 'kubelet.kubeconfig'}",
        f"--hostname-override={node_name}",
        f"--node-ip={network.NODE_ADDRESS}",
        f"--root-dir={KUBELET_FOLDER}",
    )
    return Component(
        "kubelet",
        argv,
        after=("apiserver", "containerd"),
        probe=Probe("tcp", f"{network.NODE_ADDRESS}:10250"),
    )


def _proxy(settings: Settings, program: Path, node_name: str) -> Component:
    argv = (
        str(program),
        f"--kubeconfig={settings.state / 'proxy.kubeconfig'}",
        f"--hostname-override={node_name}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={network.POD_RANGE}",
        "--conntrack-max-per-core=0",  # a setting of the whole machine: left as it is
    )
    return Component("proxy", argv, after=("apiserver",), probe=Probe("tcp", "127.0.0.1:10249"))
