"""The ConfigMap that stores the engines' measurements, for the next plans. Pure.

Readable by people: it is the evidence of every correction. cluster/observe.py reads it back.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from atom_operator import constants
from atom_operator.children import naming
from atom_operator.domain import EvidencePlan, Identity, Manifest


def learned_config_map(identity: Identity, evidence: EvidencePlan) -> Manifest | None:
    """Render the measurements; None while there are none."""
    if not evidence.learned:
        return None
    text = json.dumps([asdict(item) for item in evidence.learned], indent=2, sort_keys=True)
    metadata = naming.metadata(identity, f"{identity.key.name}-learned")
    labels = {**metadata["labels"], constants.LABEL_LEARNED: "true"}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**metadata, "labels": labels},
        "data": {constants.LEARNED_KEY: f"{text}\n"},
    }
