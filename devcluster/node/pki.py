"""Certificates of the cluster: one authority, one certificate per role, and the key of service
account tokens.

Made by the openssl program, in the state folder, readable by root only. The extensions satisfy
strict verifiers (Python 3.13 wants key usage and key identifiers). Knows roles by name and nothing
of the programs that use them.
"""

from __future__ import annotations

import base64
import shlex
from dataclasses import dataclass
from pathlib import Path

from devcluster.node import network
from devcluster.shell import run

DAYS = "3650"
CLIENTS = "ca"  # the authority that clients and servers of the cluster trust
FRONT_PROXY = "front-proxy-ca"  # signs only the API server, as a client of aggregated API servers
REQUEST = "req -config openssl.cnf -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
FRONT_PROXY_CLIENT = "front-proxy-client"
AUTHORITY_EXTENSIONS = (
    "basicConstraints=critical,CA:TRUE",
    "keyUsage=critical,keyCertSign,cRLSign",
    "subjectKeyIdentifier=hash",
)


@dataclass(frozen=True, slots=True)
class Role:
    """`user` and `group` are what the API server sees; `names` what a client may call a server with
    this certificate.
    """

    file: str
    user: str
    group: str
    names: str = ""
    authority: str = CLIENTS


def roles(node_name: str, link: network.Uplink) -> list[Role]:
    server_addresses = [
        "127.0.0.1",
        link.node_address,
        network.API_SERVICE_ADDRESS,
        network.NODE_ADDRESS,
    ]
    server_names = [
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        f"kubernetes.default.svc.{network.DOMAIN}",
    ]
    server = ",".join([*(f"DNS:{n}" for n in server_names), *(f"IP:{a}" for a in server_addresses)])
    return [
        Role("apiserver", "kube-apiserver", "kubernetes", server),
        Role("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
        Role("admin", "admin", "system:masters"),
        Role("controller-manager", "system:kube-controller-manager", "system:authenticated"),
        Role("scheduler", "system:kube-scheduler", "system:authenticated"),
        Role("proxy", "system:kube-proxy", "system:authenticated"),
        Role(
            "kubelet",
            f"system:node:{node_name}",
            "system:nodes",
            f"DNS:{node_name},IP:{network.NODE_ADDRESS}",
        ),
        Role(FRONT_PROXY_CLIENT, FRONT_PROXY_CLIENT, "kubernetes", authority=FRONT_PROXY),
    ]


def make_all(folder: Path, wanted: list[Role]) -> None:
    folder.mkdir(parents=True, mode=0o700)
    # A configuration of our own, so that the machine's defaults add no extension twice.
    (folder / "openssl.cnf").write_text("[req]\ndistinguished_name=dn\n[dn]\n")
    for authority in (CLIENTS, FRONT_PROXY):
        _make_authority(folder, authority)
    for role in wanted:
        ensure_certificate(folder, role)
    _openssl(folder, "ecparam -name prime256v1 -genkey -noout -out service-accounts.key")
    _openssl(folder, "ec -in service-accounts.key -pubout -out service-accounts.pub")


def _make_authority(folder: Path, name: str) -> None:
    extensions = " ".join(f"-addext {extension}" for extension in AUTHORITY_EXTENSIONS)
    subject = "atom-devcluster" if name == CLIENTS else f"atom-devcluster-{name}"
    files = f"-subj /CN={subject} -keyout {name}.key -out {name}.crt"
    _openssl(folder, f"{REQUEST} -x509 -days {DAYS} {extensions} {files}")


def ensure_certificate(folder: Path, role: Role) -> None:
    """Make a role's key and certificate where there are none."""
    name = role.file
    if (folder / f"{name}.crt").exists():
        return
    subject = shlex.quote(f"/O={role.group}/CN={role.user}")
    _openssl(folder, f"{REQUEST} -keyout {name}.key -out {name}.csr -subj {subject}")
    (folder / f"{name}.ext").write_text(extension_text(role))
    authority = f"-CA {role.authority}.crt -CAkey {role.authority}.key -CAcreateserial"
    files = f"-in {name}.csr -out {name}.crt -extfile {name}.ext"
    _openssl(folder, f"x509 -req {authority} -days {DAYS} {files}")


def _openssl(folder: Path, arguments: str) -> None:
    run(["openssl", *shlex.split(arguments)], cwd=folder, timeout_seconds=60)


def extension_text(role: Role) -> str:
    lines = [
        "basicConstraints=critical,CA:FALSE",
        "keyUsage=critical,digitalSignature",
        f"extendedKeyUsage={'serverAuth,' if role.names else ''}clientAuth",
        "subjectKeyIdentifier=hash",
        "authorityKeyIdentifier=keyid",
    ]
    if role.names:
        lines.append(f"subjectAltName={role.names}")
    return "\n".join(lines) + "\n"


def kubeconfig_text(folder: Path, role_file: str, server: str) -> str:
    """A kubeconfig that holds its certificates, so that the file can be copied elsewhere."""

    def inline(name: str) -> str:
        return base64.b64encode((folder / name).read_bytes()).decode()

    user = f"client-certificate-data: {inline(f'{role_file}.crt')}"
    key = f"client-key-data: {inline(f'{role_file}.key')}"
    return f"""apiVersion: v1
kind: Config
clusters:
- name: atom-devcluster
  cluster: {{server: "{server}", certificate-authority-data: {inline("ca.crt")}}}
users:
- name: {role_file}
  user: {{{user}, {key}}}
contexts:
- name: atom-devcluster
  context: {{cluster: atom-devcluster, user: {role_file}}}
current-context: atom-devcluster
"""
