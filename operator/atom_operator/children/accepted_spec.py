"""The records of specs that were carried out: of the pods that the workload asks for, which stay in
force while a successor is held back, and of other pods for as long as they may serve. Pure.

A ControllerRevision, as the record of the pods is, and for the same reasons: its data never
changes, and who may not read pods may not read the values in it. The number of replicas is left
out: it is always that of the newest spec.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from atom_operator import constants
from atom_operator.children import naming
from atom_operator.domain import CONTROLLER_REVISION, Identity, Manifest, SpecPlan, SpecRecord
from atom_operator.domain.profile import Profile


def accepted_spec(identity: Identity, spec: SpecPlan, profile: Profile | None) -> Manifest:
    """Render the object that remembers the spec of a plan, and the profile below it."""
    asked = {name: value for name, value in spec.asked.items() if name != "replicas"}
    data = _data(SpecRecord(asked, profile))
    digested = data if constants.ACCEPTED_PROFILE_KEY in data else asked
    digest = naming.short_hash(json.dumps(digested, sort_keys=True))
    return _record(identity, f"{identity.key.name}-spec-{digest}", data)


def revision_specs(identity: Identity, records: Mapping[str, SpecRecord]) -> Iterator[Manifest]:
    """Yield the objects that record the specs of pods other than the workload's: pods that still
    serve or may still be made, and the target of a rollback."""
    for revision, record in records.items():
        data = {**_data(record), "revision": revision}
        if record.image is not None:
            data["image"] = record.image
        kept = {constants.REVISION_SPEC_KEY: data}
        yield _record(identity, f"{identity.key.name}-{revision}-spec", kept)


def _data(record: SpecRecord) -> dict[str, Any]:
    data: dict[str, Any] = {constants.ACCEPTED_SPEC_KEY: dict(record.asked)}
    profile = record.profile
    if profile is not None and profile.template is not None:
        template = dict(profile.template)
        data[constants.ACCEPTED_PROFILE_KEY] = {"name": profile.name, "template": template}
    return data


def _record(identity: Identity, name: str, data: dict[str, Any]) -> Manifest:
    return {
        "apiVersion": CONTROLLER_REVISION.api_version,
        "kind": CONTROLLER_REVISION.kind,
        "metadata": naming.metadata(identity, name),
        "revision": 1,
        "data": data,
    }
