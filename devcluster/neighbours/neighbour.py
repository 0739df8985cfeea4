"""What a neighbour is: values that its own file fills and `installation` carries out."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from devcluster.node.components import Component
from devcluster.programs.binaries import Group

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Say where a neighbour finds what was made for it. `module`: its unpacked sources; the folder
    of certificates holds tls.crt, tls.key and ca.crt.
    """

    folder: Path
    module: Path
    programs: Mapping[str, Path]
    certificates: Path
    kubeconfig: Path

    @property
    def authority(self) -> str:
        """The certificate authority as webhooks and APIServices take it."""
        return base64.b64encode((self.certificates / "ca.crt").read_bytes()).decode()

    def started_with(self, environment: Mapping[str, str], *argv: str) -> tuple[str, ...]:
        """A command line with the kubeconfig and further variables in its environment."""
        variables = {"KUBECONFIG": str(self.kubeconfig), **environment}
        return ("env", *(f"{name}={value}" for name, value in variables.items()), *argv)

    def manifests(self, *files: str) -> list[Object]:
        """Every object of files of the module."""
        texts = [(self.module / file).read_text(encoding="utf-8") for file in files]
        return [found for text in texts for found in yaml.safe_load_all(text) if found]


@dataclass(frozen=True, slots=True)
class Installation:
    """Hold what belongs into the API and onto the disk before the components start."""

    components: Sequence[Component]
    objects: Sequence[Object] = ()
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """`crds`: patterns of files of the module; `upstream_crds`: names of files of other modules, as
    programs/upstream_crds.py has them; `server_names`: further names in its certificate.
    """

    name: str
    group: Group
    install: Callable[[Place], Installation]
    crds: tuple[str, ...] = ()
    upstream_crds: tuple[str, ...] = ()
    server_names: tuple[str, ...] = ()


def namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
