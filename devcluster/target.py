"""Which cluster to use: the one that KUBECONFIG names when CLUSTER=current is given, else the
embedded one.

For the Makefile, the demo and the end-to-end tests. With CLUSTER=current nothing here touches the
embedded cluster.
"""

from __future__ import annotations

import enum
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from devcluster import preflight
from devcluster.errors import DevclusterError
from devcluster.settings import Settings, read_settings
from devcluster.shell import run

REACH_SECONDS = 10


class Kind(enum.Enum):
    EMBEDDED = "embedded"
    CURRENT = "current"


@dataclass(frozen=True, slots=True)
class Target:
    """`kubeconfig` is a value for the KUBECONFIG variable (a path, or several with colons)."""

    kind: Kind
    kubeconfig: str
    settings: Settings

    @property
    def is_embedded(self) -> bool:
        return self.kind is Kind.EMBEDDED


def chosen_kind(environ: Mapping[str, str]) -> Kind:
    wanted = environ.get("CLUSTER", "") or "embedded"
    try:
        return Kind(wanted)
    except ValueError:
        raise DevclusterError(
            f"CLUSTER={wanted} is neither `embedded` nor `current`; unset it or give one of them"
        ) from None


def resolve(environ: Mapping[str, str]) -> Target:
    """The target, without looking whether it answers."""
    settings = read_settings(environ)
    if chosen_kind(environ) is Kind.EMBEDDED:
        return Target(Kind.EMBEDDED, str(settings.kubeconfig), settings)
    default = Path(environ.get("HOME") or "/root") / ".kube" / "config"
    return Target(Kind.CURRENT, environ.get("KUBECONFIG") or str(default), settings)


def why_unusable(environ: Mapping[str, str]) -> str | None:
    """One sentence why no cluster can be used here, for a test's skip; None when one can (or can be
    brought up).
    """
    try:
        target = resolve(environ)
        if target.is_embedded:
            return preflight.why_not_here()
        require_reachable(target)
    except DevclusterError as error:
        return str(error)
    return None


def require_reachable(target: Target) -> None:
    kubectl = shutil.which("kubectl") or str(target.settings.tools / "kubectl")
    try:
        run(
            [
                kubectl,
                f"--kubeconfig={target.kubeconfig}",
                f"--request-timeout={REACH_SECONDS}s",
                "get",
                "--raw",
                "/readyz",
            ]
        )
    except DevclusterError as error:
        remedy = (
            "start it with `python -m devcluster up`"
            if target.is_embedded
            else "check KUBECONFIG, or leave CLUSTER=current out"
        )
        raise DevclusterError(
            f"the cluster of {target.kubeconfig} does not answer; {remedy} ({error})"
        ) from error
