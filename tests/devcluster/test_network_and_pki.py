"""Addresses of instances do not collide; certificates satisfy a strict verifier."""

from __future__ import annotations

import ipaddress
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from devcluster.api_reader import reader_of
from devcluster.node import network, pki
from devcluster.settings import MAX_INSTANCE


def test_every_instance_has_a_link_and_a_subnet_of_its_own() -> None:
    links = [network.uplink(i) for i in range(MAX_INSTANCE + 1)]
    assert len({link.link for link in links}) == len(links)
    subnets = [ipaddress.ip_network(f"{link.host_address}/30", strict=False) for link in links]
    assert len(set(subnets)) == len(links)
    for link, subnet in zip(links, subnets, strict=True):
        assert ipaddress.ip_address(link.node_address) in subnet
        assert len(link.link) <= 15, "the kernel's limit of a link's name"


def test_the_namespace_gets_no_default_route() -> None:
    commands = [" ".join(c) for c in network.commands_in_namespace(network.uplink(0))]
    routes = [c for c in commands if c.startswith("ip route")]
    assert routes == [f"ip route add {network.SERVICE_RANGE} dev cni0"]


def test_pod_traffic_is_never_masqueraded() -> None:
    bridge = json.loads(network.cni_config(Path("/ipam")))["plugins"][0]
    assert bridge["ipMasq"] is False
    assert bridge["ipam"]["ranges"] == [[{"subnet": network.POD_RANGE}]]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_certificates_pass_strict_verification(tmp_path: Path) -> None:
    folder = tmp_path / "pki"
    roles = pki.roles("dev-node", network.uplink(0))
    pki.make_all(folder, roles)
    for role in roles:
        purpose = "sslserver" if role.names else "sslclient"
        command = ["openssl", "verify", "-x509_strict", "-purpose", purpose]
        files = ["-CAfile", f"{role.authority}.crt", f"{role.file}.crt"]
        done = subprocess.run([*command, *files], cwd=folder, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_kubeconfig_needs_no_other_file(tmp_path: Path) -> None:
    folder = tmp_path / "pki"
    pki.make_all(folder, pki.roles("dev-node", network.uplink(0)))
    text = pki.kubeconfig_text(folder, "admin", "https://10.0.0.1:6443")
    assert str(tmp_path) not in text
    assert "https://10.0.0.1:6443" in text
    (tmp_path / "kubeconfig").write_text(text)
    reader = reader_of(str(tmp_path / "kubeconfig"))
    assert reader is not None
    assert reader.address == "10.0.0.1:6443"
