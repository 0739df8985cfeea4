"""Every neighbour by its name, in the order in which `--with` lists them."""

from __future__ import annotations

from devcluster.errors import DevclusterError
from devcluster.neighbours.cert_manager import CERT_MANAGER
from devcluster.neighbours.contour import CONTOUR
from devcluster.neighbours.endpoint_picker import ENDPOINT_PICKER
from devcluster.neighbours.keda import KEDA
from devcluster.neighbours.kueue import KUEUE
from devcluster.neighbours.lws import LWS
from devcluster.neighbours.neighbour import Neighbour
from devcluster.neighbours.prometheus import PROMETHEUS

NEIGHBOURS = {
    neighbour.name: neighbour
    for neighbour in (LWS, KEDA, PROMETHEUS, CERT_MANAGER, ENDPOINT_PICKER, KUEUE, CONTOUR)
}


def parse_names(text: str) -> list[Neighbour]:
    """`lws,keda` → these neighbours, each once."""
    names = dict.fromkeys(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in NEIGHBOURS]
    if unknown:
        raise DevclusterError(
            f"--with {text}: there is no neighbour {unknown[0]}; known are {', '.join(NEIGHBOURS)}"
        )
    return [NEIGHBOURS[name] for name in names]
