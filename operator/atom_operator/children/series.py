"""How the engine's time series of one AtomDeployment are selected in PromQL. Pure.

Prometheus writes a pod's label with underscores; the PodMonitor copies it to every series.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from atom_operator import constants
from atom_operator.domain import ObjectKey

Selector = Callable[[str], str]
SERIES_LABEL = re.sub(r"[^a-zA-Z0-9_]", "_", constants.LABEL_DEPLOYMENT)


def selector_of(key: ObjectKey, *also: str) -> Selector:
    """Return a function from a metric's name to that metric of this AtomDeployment, and of those
    named `also` in its namespace."""
    names = "|".join((key.name, *also))
    matches = f'=~"{names}"' if also else f'="{names}"'
    labels = f'{{namespace="{key.namespace}",{SERIES_LABEL}{matches}}}'
    return lambda metric: f"{metric}{labels}"
