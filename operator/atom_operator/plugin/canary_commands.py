"""`kubectl atom promote | undo | hold`: a person's decision about a canary, written by kubectl.

They write spec.canary.decision, with the change that it is about, and nothing else, except `promote
--write`, which writes the change into the spec in its place. The operator acts on the field.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.canary_spec import promoted_spec
from atom_operator.children.canary import content_digest
from atom_operator.plugin.gathering import RESOURCE
from atom_operator.plugin.kubectl import Kubectl, KubectlError
from atom_operator.validation.parsing import parse_spec

Options = argparse.Namespace
_DECISION, _DECISION_FOR = "/spec/canary/decision", "/spec/canary/decisionFor"
_ACTS = ("Promote", "Undo")


def promote(kubectl: Kubectl, options: Options) -> int:
    """Promote the canary; with --write the spec itself is changed."""
    if not options.write:
        return _decide(kubectl, options.name, "Promote")
    parent, spec = _with_canary(kubectl, options.name)
    after = promoted_spec(parent["spec"], spec)
    changed = [
        name for name in after if name != "canary" and after[name] != parent["spec"].get(name)
    ]
    patch = [{"op": "add", "path": f"/spec/{name}", "value": after[name]} for name in changed]
    _patch(kubectl, parent, [*patch, {"op": "remove", "path": "/spec/canary"}])
    said = ", ".join(f"spec.{name}" for name in changed) or "nothing new"
    print(f"{options.name}: the change is in the spec ({said}), and spec.canary is gone")
    return 0


def undo(kubectl: Kubectl, options: Options) -> int:
    """Undo the canary: its pods go, and all requests to the others."""
    return _decide(kubectl, options.name, "Undo")


def hold(kubectl: Kubectl, options: Options) -> int:
    """Hold the canary at its share; with --off its steps continue."""
    return _decide(kubectl, options.name, None if options.off else "Hold")


def add_canary_commands(commands: Any, common: Any) -> None:
    """Add the commands; `common` adds their common flags to a parser."""
    for name, run, text in (
        ("promote", promote, "all pods become what the canary is"),
        ("undo", undo, "the canary's pods go, and all requests to the others"),
        ("hold", hold, "the canary keeps its share, and its steps stop"),
    ):
        parser = commands.add_parser(name, help=text)
        parser.add_argument("name", metavar="NAME", help="name of the AtomDeployment")
        common(parser, run)
        if name == "promote":
            text = "write the change into the spec and remove spec.canary"
            parser.add_argument("--write", action="store_true", help=text)
        if name == "hold":
            parser.add_argument("--off", action="store_true", help="let the steps go on")


def _decide(kubectl: Kubectl, name: str, decision: str | None) -> int:
    """Write a decision with the change that it is about; take both away for None."""
    parent, spec = _with_canary(kubectl, name)
    canary = spec.canary
    assert canary is not None
    before, changes = canary.decision, []
    if decision is not None:
        changes.append({"op": "add", "path": _DECISION, "value": decision})
    elif before is not None:
        changes.append({"op": "remove", "path": _DECISION})
    change = _change(name, parent) if decision in _ACTS else None
    if change is not None:
        changes.append({"op": "add", "path": _DECISION_FOR, "value": change})
    elif canary.decision_for is not None:
        changes.append({"op": "remove", "path": _DECISION_FOR})
    if changes:
        _patch(kubectl, parent, changes)
    print(f"{name}: spec.canary.decision is {decision or 'absent'}, and was {before or 'absent'}")
    return 0


def _change(name: str, parent: dict[str, Any]) -> str | None:
    """Digest the change that is decided about; None before the operator has seen any, which takes
    the decision as one about the first that it sees."""
    seen = ((parent.get("status") or {}).get("canary") or {}).get("change")
    asked = content_digest(parent["spec"]["canary"]["change"])
    if seen is not None and seen != asked:
        raise KubectlError(
            f"{name}: the operator has not looked at the newest spec.canary.change yet, so nothing"
            " is known of that canary; decide when kubectl atom status shows it"
        )
    return seen if seen is None else str(seen)


def _with_canary(kubectl: Kubectl, name: str) -> tuple[dict[str, Any], AtomDeploymentSpec]:
    parent = kubectl.json("get", RESOURCE, name)
    spec = parse_spec(parent.get("spec") or {})
    if isinstance(spec, tuple):
        raise KubectlError(f"{name}: {spec[0]}")
    if spec.canary is None:
        raise KubectlError(f"{name} has no canary: set spec.canary")
    return parent, spec


def _patch(kubectl: Kubectl, parent: dict[str, Any], changes: list[dict[str, Any]]) -> None:
    """Patch the AtomDeployment; refused if another client has changed it since it was read."""
    version = parent["metadata"]["resourceVersion"]
    same = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
    name, patch = parent["metadata"]["name"], json.dumps([same, *changes])
    kubectl.text("patch", RESOURCE, name, "--type=json", f"--patch={patch}")
