"""The page of conditions: every type and reason of an AtomDeployment's status, and what it means.

The meanings are written in conditions.yaml; a test holds it against the operator's enums.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from tools.reference.markdown import code, head, table

_TEXTS = Path(__file__).with_suffix(".yaml")
_HEAD = """
`kubectl get atomd NAME -o yaml` shows these conditions, and `kubectl atom why NAME` tells the chain
of causes. A condition of a feature that the spec does not ask for is absent, and so is
`DevicesHealthy` while no device of a pod is called sick. The message beside a reason says what,
where, and the remedy. `Ready` repeats the reason of what keeps it from being true, and some reasons
appear in a second condition too.
"""


def meanings() -> Mapping[str, Mapping[str, Any]]:
    """Collect by condition when it is true, and the meaning of each of its reasons."""
    return cast(Mapping[str, Mapping[str, Any]], yaml.safe_load(_TEXTS.read_text("utf-8")))


def page() -> str:
    known = meanings()
    types = ((code(kind), part["true when"]) for kind, part in known.items())
    text = head("Conditions", _HEAD) + f"\n{table(('condition', 'true when'), types)}"
    for kind, part in known.items():
        rows = [(code(reason), words) for reason, words in part.get("reasons", {}).items()]
        if rows:
            text += f"\n## {kind}\n{table(('reason', 'meaning'), rows)}"
    return text
