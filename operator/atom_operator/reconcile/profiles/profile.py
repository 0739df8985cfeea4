"""Merges an AtomProfile below a spec, which wins. Pure.

The spec names it, else a label of its namespace, else it is the one named default if there is one:
an AtomProfile, or the defaults of the operator's chart. A named profile that is missing, or that
cannot be used, is a problem of the spec, so that the serving pods stay unchanged.

The profile is first converted to the form of a spec (its proxy becomes variables, the catalogue's
entry spec.model.config). Then maps are merged key by key and lists of named items by name; any
other value of the spec wins. Pod templates are no part of this: each is merged separately, the
profile's first (children/workload.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from atom_operator.api.v1alpha1 import AtomDeploymentSpec, AtomProfileSpec
from atom_operator.api.v1alpha1.atomprofile import ImageAbilities, ProxySpec
from atom_operator.children.overlay import overlay_paths
from atom_operator.constants import DEFAULT_PROFILE, LABEL_PROFILE, Reason
from atom_operator.domain import FieldProblem
from atom_operator.domain.origin import Default
from atom_operator.domain.profile import EngineAbilities, Profile
from atom_operator.integration_values import EngineFeature
from atom_operator.reconcile.profiles.fence import Fence, Namespace
from atom_operator.validation.parsing import parse_profile, parse_spec

# Of a site, by the field of an image's abilities.
_SITE_FIELDS = {
    "max_tensor_parallel": "engine_tensor_parallel",
    "multi_node": "engine_multi_node",
    "architectures": "engine_architectures",
    "features": "engine_features",
}
_OF_PROFILE = "AtomProfile "  # before its name, in a Default's
_NO_PROFILE = Default("AtomProfile", "none")
_WHOLE = "model.config"  # no map whose keys are joined
_SAYS_BY_BEING_THERE = "accelerator.claim"  # also if it is empty
# A spec has one of two ways to devices, and none of a profile beside it.
_OTHER_WAY = {"claim": "resourceName", "resourceName": "claim"}


@dataclass(frozen=True, slots=True)
class Laid:
    """A spec with its profile below it."""

    spec: AtomDeploymentSpec
    profile: Profile | None
    own: AtomDeploymentSpec  # without the profile
    default: Default = _NO_PROFILE  # the profile as a whole


def name_profile(
    spec: AtomDeploymentSpec, namespace: str, label: str | None
) -> tuple[str, str | None]:
    """Name the profile, and its selector; `label` is the value on its namespace."""
    if spec.profile is not None:
        return spec.profile, "spec.profile"
    if label:
        return label, f"label {LABEL_PROFILE} of namespace {namespace}"
    return DEFAULT_PROFILE, None


def lay(
    raw: Mapping[str, Any],
    spec: AtomDeploymentSpec,
    named: tuple[str, str | None],
    found: Mapping[str, Any] | None,
    *,
    namespace: Namespace | None = None,
) -> Laid | tuple[FieldProblem, ...]:
    """Merge the profile's spec `found` below `raw`, of which `spec` is the typed form; `named` is
    its name, and its selector. `namespace`: of the AtomDeployment; None is not judged."""
    name, where = named
    if found is None and where is None:
        return Laid(spec, None, spec)
    if found is None:
        create = "create it, or name another one"
        return (profile_problem(f"AtomProfile {name}, named by {where}, does not exist; {create}"),)
    profile = parse_profile(name, found)
    if isinstance(profile, tuple):
        return profile
    if namespace is not None:
        fence = Fence.of(profile)
        if (words := fence.unknown(namespace)) is not None:
            words = f"AtomProfile {name}: {words}"
            return (FieldProblem("spec.profile", words, Reason.INVALID_PROFILE),)
        if not fence.is_open_to(namespace):
            return _not_for(fence, namespace, named, spec)
    joined, known = _lay_below(name, profile, raw)
    result = parse_spec(joined)
    if isinstance(result, tuple):
        return result
    said = hashlib.sha256(json.dumps(found, sort_keys=True, default=str).encode()).hexdigest()
    return Laid(result, known, spec, Default(f"{_OF_PROFILE}{name}", said[:12]))


def is_profile(default: Default) -> bool:
    """Tell an AtomProfile from other defaults of many, such as an image."""
    return default.name.startswith(_OF_PROFILE)


def _not_for(
    fence: Fence, namespace: Namespace, named: tuple[str, str | None], spec: AtomDeploymentSpec
) -> Laid | tuple[FieldProblem, ...]:
    """Refuse a profile that is named in a namespace that may not take it; the default is only not
    laid below its specs."""
    name, where = named
    if where is None:
        return Laid(spec, None, spec)
    words = f"AtomProfile {name}, named by {where}, is not for namespace {namespace.name}, but for"
    remedy = (
        "name another one, or have this namespace added to the profile's spec.namespaces or "
        "spec.namespaceSelector"
    )
    return (FieldProblem("spec.profile", f"{words} {fence}; {remedy}", Reason.INVALID_PROFILE),)


def profile_problem(words: str) -> FieldProblem:
    """Build the problem of a spec whose profile cannot be merged."""
    return FieldProblem("spec.profile", words, Reason.PROFILE_NOT_FOUND)


def _lay_below(
    name: str, profile: AtomProfileSpec, spec: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Profile]:
    fields: list[str] = []
    joined = _join(_as_spec(profile, spec), spec, "", fields)
    template = profile.template or None
    paths = (f"template.{path}" for path in overlay_paths(template or {}))
    account, abilities = profile.service_account_name, map(_abilities, profile.images or ())
    return joined, Profile(name, (*fields, *paths), template, account, tuple(abilities))


def _as_spec(profile: AtomProfileSpec, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the profile's part of a spec, without fields that do not apply to this one."""
    written = profile.model_dump(mode="json", by_alias=True, exclude_unset=True)
    same = ("accelerator", "engine", "rollout", "serviceAccountName", "objects")
    below = {field: written[field] for field in same if written.get(field) is not None}
    accelerator = spec.get("accelerator") or {}
    if accelerator.get("type", "amd") != "amd":
        below.pop("accelerator", None)
    elif "accelerator" in below:
        chosen = {_OTHER_WAY[way] for way in _OTHER_WAY if accelerator.get(way) is not None}
        below["accelerator"] = {
            name: value for name, value in below["accelerator"].items() if name not in chosen
        }
    variables = list(_proxy_variables(profile.proxy))
    if variables:
        engine = below.get("engine") or {}
        own = {item["name"] for item in engine.get("env") or ()}
        kept = [item for item in variables if item["name"] not in own]
        below["engine"] = {**engine, "env": [*kept, *(engine.get("env") or ())]}
    model = spec["model"]
    known = {entry.source: entry.config for entry in profile.models or ()}
    if model["source"] in known and not (model.get("config") or model.get("configRef")):
        below["model"] = {"config": known[model["source"]]}
    return below


def _proxy_variables(proxy: ProxySpec) -> Iterator[dict[str, str]]:
    """Yield both spellings: programs look for one or the other."""
    for name, value in (
        ("HTTP_PROXY", proxy.http),
        ("HTTPS_PROXY", proxy.https),
        ("NO_PROXY", proxy.no_proxy),
    ):
        if value is not None:
            yield {"name": name, "value": value}
            yield {"name": name.lower(), "value": value}


def _join(
    below: Mapping[str, Any], above: Mapping[str, Any], path: str, fields: list[str]
) -> dict[str, Any]:
    """Merge two maps, and add to `fields` those that are from `below`."""
    result = dict(above)
    for name, value in below.items():
        where = f"{path}.{name}" if path else name
        over = above.get(name)
        if where == _SAYS_BY_BEING_THERE and over is None and not value:
            fields.append(where)
            result[name] = value
        if value in ([], {}):
            continue
        if isinstance(value, Mapping) and where != _WHOLE:
            if over is None or isinstance(over, Mapping):
                result[name] = _join(value, over or {}, where, fields)
        elif _is_named(value):
            own = {item["name"] for item in over or ()}
            kept = [item for item in value if item["name"] not in own]
            fields.extend(f"{where}[{item['name']}]" for item in kept)
            result[name] = [*kept, *(over or ())]
        elif over is None:
            fields.append(where)
            result[name] = value
    return result


def _is_named(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, Mapping) for item in value)


def _abilities(asked: ImageAbilities) -> EngineAbilities:
    said = asked.model_dump(exclude_none=True, exclude={"image"})
    changes = {_SITE_FIELDS[name]: value for name, value in said.items()}
    if "engine_architectures" in changes:
        changes["engine_architectures"] = tuple(changes["engine_architectures"])
    if "engine_features" in changes:
        changes["engine_features"] = frozenset(map(EngineFeature, changes["engine_features"]))
    return EngineAbilities(asked.image, changes)
