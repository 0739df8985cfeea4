"""The manifest of an imported deployment, which the API server accepts. Pure.

Settings become the spec in their order. The judge of `kubectl atom plan` (schema and CEL) and the
operator's own rules then look at the manifest: a setting that they refuse is taken out and
reported, so that the output is always accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from atom_operator import constants
from atom_operator.domain import FieldProblem, Manifest
from atom_operator.importing.machines import settled
from atom_operator.importing.results import (
    Finding,
    Imported,
    Setting,
    TranslationError,
    changed,
    left,
)
from atom_operator.importing.secret_values import holds_secret
from atom_operator.served_schema.manifest import judge
from atom_operator.validation.parsing import parse_spec
from atom_operator.validation.rules import validate

_Problems: TypeAlias = Callable[[Sequence[Setting]], list[FieldProblem]]
_NO_MODEL = (
    "give --model SOURCE: hf://ORG/NAME, s3://BUCKET/PREFIX, pvc://CLAIM/FOLDER or oci://IMAGE"
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A manifest that is accepted, and what is not in it as it was written."""

    origin: str
    manifest: Manifest
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Given:
    """Options of the command, which win over the input. namespace: of the manifests."""

    model: str | None = None
    product: str | None = None
    namespace: str | None = None


def render(imported: Imported, given: Given) -> Rendered:
    """Render the manifest. Raises `TranslationError` if the input names no model that can be
    served."""
    settings, findings = settled(imported.results)
    settings = [*settings, *_of_options(given)]
    kept, secret = _without_secrets(settings)
    kept, replaced = _last_of_each(kept)
    kept, refused = _accepted(imported, given, kept)
    refused += [changed(each.where, f"spec.{each.path}: {each.note}") for each in kept if each.note]
    manifest = _manifest(imported, given, kept)
    return Rendered(imported.origin, manifest, (*findings, *secret, *replaced, *refused))


def _of_options(given: Given) -> Iterator[Setting]:
    if given.model is not None:
        yield Setting("model.source", given.model, "--model")
    if given.product is not None:
        yield Setting("accelerator.product", given.product, "--product")


def _without_secrets(settings: Sequence[Setting]) -> tuple[list[Setting], list[Finding]]:
    secret = [each for each in settings if holds_secret(each.value)]
    findings = [
        left(
            each.where,
            f"spec.{each.path}: the value may be secret and is not printed; use a Secret",
        )
        for each in secret
    ]
    return [each for each in settings if each not in secret], findings


def _last_of_each(settings: Sequence[Setting]) -> tuple[list[Setting], list[Finding]]:
    """Keep the last of several values of a field, and report the others if they differ."""
    given = {each.path for each in settings if not each.is_default}
    settings = [each for each in settings if not each.is_default or each.path not in given]
    last = {each.path: each for each in settings}
    kept, findings = [], []
    for each in settings:
        final = last[each.path]
        if each is final or isinstance(each.value, (dict, list)):
            kept.append(each)
        elif each.value != final.value and not each.is_default:
            findings.append(
                changed(each.where, f"spec.{each.path}: {final.where} sets it too, and counts")
            )
    return kept, findings


def _accepted(
    imported: Imported, given: Given, settings: Sequence[Setting]
) -> tuple[list[Setting], list[Finding]]:
    """Take out the settings that the API server or the operator would refuse."""
    kept, findings = list(settings), []

    def problems(chosen: Sequence[Setting]) -> list[FieldProblem]:
        return list(_problems(_manifest(imported, given, chosen)))

    while found := problems(kept):
        problem = found[0]
        guilty = _guilty(problem, kept, problems)
        if guilty is None or _is_model(guilty):
            raise TranslationError(_without_model(imported, problem, guilty))
        kept.remove(guilty)
        findings.append(left(guilty.where, f"{problem.field}: {problem.message}"))
    return kept, findings


def _is_model(setting: Setting) -> bool:
    return setting.path == "model.source"


def _without_model(imported: Imported, problem: FieldProblem, guilty: Setting | None) -> str:
    if problem.field.startswith("metadata"):
        return f"{imported.origin}: {problem}"
    if guilty is not None:
        return f"{guilty.where}: {problem.field}: {problem.message}; {_NO_MODEL}"
    if problem.field.startswith("spec.model"):
        return f"{imported.origin}: names no model that can be served from where it is; {_NO_MODEL}"
    return f"{imported.origin}: {problem}"


def _problems(manifest: Manifest) -> Iterator[FieldProblem]:
    judged = judge(manifest)
    if judged.problems:
        yield from judged.problems
        return
    spec = parse_spec(manifest["spec"])
    yield from spec if isinstance(spec, tuple) else validate(spec)


def _guilty(
    problem: FieldProblem, settings: Sequence[Setting], problems: _Problems
) -> Setting | None:
    """Return the setting to which a problem belongs: the one of the field, else, for a rule about
    several fields, the last one without which the rule holds."""
    path = problem.field.removeprefix("spec").removeprefix(".")
    if path.startswith("engine.extraArgs["):
        return _argument(path, settings)
    name = path.partition("[")[0]
    for each in reversed(settings):
        if each.path == name or name.startswith(f"{each.path}."):
            return each
    while True:
        below = [
            each
            for each in reversed(settings)
            if (not path or each.path.startswith(f"{path}.")) and not _is_model(each)
        ]
        for each in below:
            if problem not in problems([other for other in settings if other is not each]):
                return each
        if below or not path:
            return below[0] if below else None
        path = path.rpartition(".")[0]


def _argument(path: str, settings: Sequence[Setting]) -> Setting | None:
    position = int(path.partition("[")[2].partition("]")[0])
    for each in settings:
        if each.path == "engine.extraArgs":
            if position < len(each.value):
                return each
            position -= len(each.value)
    return None


def _manifest(imported: Imported, given: Given, settings: Sequence[Setting]) -> Manifest:
    namespace = given.namespace or imported.namespace
    metadata = {"name": imported.name, **({"namespace": namespace} if namespace else {})}
    manifest: dict[str, Any] = {
        "apiVersion": constants.API_VERSION,
        "kind": constants.KIND,
        "metadata": metadata,
        "spec": {"model": {}},
    }
    for each in settings:
        rooted = each.path.startswith("/")
        steps = each.path.removeprefix("/").split(".")
        place = manifest if rooted else manifest["spec"]
        for step in steps[:-1]:
            place = place.setdefault(step, {})
        place[steps[-1]] = _joined(place.get(steps[-1]), each.value)
    return manifest


def _joined(before: Any, value: Any) -> Any:
    """Join lists and objects; items with the same name are one, the last."""
    if isinstance(before, dict) and isinstance(value, dict):
        return {
            key: _joined(before.get(key), value[key]) if key in value else before[key]
            for key in dict.fromkeys((*before, *value))
        }
    if isinstance(before, list) and isinstance(value, list):
        names = {item["name"] for item in value if isinstance(item, dict) and "name" in item}
        kept = [
            each for each in before if not isinstance(each, dict) or each.get("name") not in names
        ]
        return [*kept, *value]
    return value


def renamed(rendered: Sequence[Rendered]) -> list[Rendered]:
    """Number the manifests that have the same name and namespace."""
    seen: dict[tuple[str, str], int] = {}
    found = []
    for each in rendered:
        metadata = each.manifest["metadata"]
        key = (str(metadata.get("namespace") or ""), str(metadata["name"]))
        seen[key] = seen.get(key, 0) + 1
        if seen[key] > 1:
            name = f"{metadata['name']}-{seen[key]}"
            manifest = {**each.manifest, "metadata": {**metadata, "name": name}}
            note = changed("metadata.name", f"another one has the name; this is {name}")
            each = replace(each, manifest=manifest, findings=(*each.findings, note))
        found.append(each)
    return found
