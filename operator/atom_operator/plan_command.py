"""`plan -f FILE [--nodes FILE] [--values FILE]`: the operator's decision, without a cluster.

Reads files as kubectl reads them, judges the manifests by the CRD's own schema and rules, and then
decides by the same functions as the operator: the verdict is that of `kubectl apply
--dry-run=server`. Prints.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import yaml

from atom_operator import constants
from atom_operator.canary_spec import canary_spec
from atom_operator.children.config_map import plan_config_map
from atom_operator.children.naming import canary_name
from atom_operator.children.workload import pod_template
from atom_operator.constants import LABEL_PROFILE, Reason
from atom_operator.domain import NAMESPACE, FieldProblem, Manifest, ObjectKey, Owner, Plan, Supply
from atom_operator.domain.devices import DevicePicture, device_picture
from atom_operator.domain.nodes import Nodes
from atom_operator.domain.placed_pods import placed_pods
from atom_operator.integration_values import Site
from atom_operator.kinds import DEVICE_CLASS, RESOURCE_CLAIM, RESOURCE_SLICE
from atom_operator.plan.devices.claimed_devices import supply_of
from atom_operator.plan.inventory import pods_asked
from atom_operator.plan.model_facts import catalogue_sources
from atom_operator.plan_arithmetic import terms
from atom_operator.plan_report import PlanReport, lines, needs_of
from atom_operator.plan_site import ValuesError, site_of_values
from atom_operator.plugin.output import FORMATS, show, show_document, width, wrapped
from atom_operator.reconcile.planning import (
    ModelKnown,
    PlannedPair,
    SpecLayers,
    Surroundings,
    consider,
)
from atom_operator.reconcile.profiles.fence import Namespace
from atom_operator.reconcile.profiles.profile import Laid, lay, name_profile
from atom_operator.served_schema.kubectl_yaml import read_documents
from atom_operator.served_schema.manifest import judge, unknown_kind
from atom_operator.validation.parsing import parse_spec

# Only the operator knows its defaults; no number of a plan depends on the image.
_IMAGES: dict[Literal["amd", "cpu"], str] = {
    "amd": "the operator's default",
    "cpu": "the operator's default",
}


_HUB = "hf://"


class InputError(Exception):
    """A file that cannot be used; the message names it and the remedy."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `plan`."""
    parser.add_argument(
        "-f",
        "--filename",
        required=True,
        metavar="FILE",
        help="manifests with AtomDeployments and the ConfigMaps they refer to; - is stdin",
    )
    add_surroundings(parser)
    parser.add_argument("-o", "--output", choices=FORMATS, default="text", help="default: text")


def add_surroundings(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the files that a plan takes into account."""
    parser.add_argument(
        "--nodes",
        metavar="FILE",
        help="nodes, and pods that hold devices: kubectl get nodes,pods -A -o json > FILE; for "
        "claims also resourceslices,resourceclaims,deviceclasses",
    )
    parser.add_argument(
        "--values",
        metavar="FILE",
        help="values of the operator's chart: what your engine images can do, your Prometheus",
    )
    parser.add_argument(
        "--profile",
        metavar="FILE",
        help="AtomProfiles, and namespaces that name one: kubectl get atomprofiles,namespaces "
        "-o yaml > FILE; those in the manifests' own file count too",
    )


def run(options: argparse.Namespace) -> int:
    """Return 0 when everything can start, 1 when something cannot, 2 for files that cannot be used
    and for models of the hub of which nothing is known."""
    try:
        found = reports(_documents(options.filename), options)
        if not found:
            raise InputError(f"{options.filename} has no {constants.KIND}; give its manifest")
    except InputError as error:
        print(f"plan: {error}", file=sys.stderr)
        return 2
    if options.output != "text":
        show_document([report_document(report) for report in found], options.output)
    else:
        for number, report in enumerate(found):
            show([*([""] if number else []), *lines(report)])
    unknown = [report for report in found if _source_unknown(report)]
    for report in unknown:
        for part in wrapped(_not_planned(report), width()):
            print(part, file=sys.stderr)
    if any(_source_unknown(report).startswith(_HUB) for report in unknown):
        return 2
    return 0 if all(report.can_start for report in found) else 1


def reports(manifests: Sequence[Manifest], options: argparse.Namespace) -> list[PlanReport]:
    """Return the reports of manifests in the surroundings of `add_surroundings`. Raises
    `InputError`."""
    fleet = _documents(options.nodes) if options.nodes else None
    site = _site(options.values) if options.values else Site()
    beside = [*manifests, *(_documents(options.profile) if options.profile else ())]
    return [*_refused(beside), *_judged_reports(manifests, beside, fleet, site)]


def _source_unknown(report: PlanReport) -> str:
    """Return the source of a model whose facts are unknown; "" if they are known."""
    plan = report.plan
    if plan is None or plan.capacity.reason is not Reason.MODEL_FACTS_UNKNOWN:
        return ""
    return str((plan.spec.asked.get("model") or {}).get("source"))


def _not_planned(report: PlanReport) -> str:
    """Return the message about a model without a plan: a hub name may be misspelt, other sources
    are the site's own."""
    source = _source_unknown(report)
    near = get_close_matches(source, catalogue_sources(), n=1, cutoff=0.8)
    meant = f"did you mean {near[0]}? Correct it" if near else "correct it if it is misspelt"
    return (
        f"{'error' if source.startswith(_HUB) else 'warning'}: {report.key.name}: "
        f"spec.model.source: nothing was planned, because {source} is not in the operator's "
        f"catalogue and no config.json is given; {meant}, or give the model's config.json in "
        f"spec.model.config or spec.model.configRef"
    )


def _refused(objects: Sequence[Manifest]) -> Iterator[PlanReport]:
    """Yield a report for each object, other than an AtomDeployment, that the API server refuses."""
    for item in objects:
        is_profile = item.get("kind") == constants.PROFILE_KIND
        problems = judge(item).problems if is_profile else unknown_kind(item)
        if problems:
            yield PlanReport(_key(item), problems, kind=str(item.get("kind")))


def _judged_reports(
    manifests: Sequence[Manifest],
    beside: Sequence[Manifest],
    fleet: Sequence[Manifest] | None,
    site: Site,
) -> Iterator[PlanReport]:
    """Yield the reports of every AtomDeployment, in the form that the API server would store."""
    for item in _of_kind(manifests, constants.KIND):
        judged = judge(item)
        if judged.problems:
            yield PlanReport(_key(item), judged.problems)
        else:
            yield from _reports(judged.stored, beside, fleet, site)


def _key(manifest: Manifest) -> ObjectKey:
    metadata = manifest["metadata"]
    return ObjectKey(str(metadata.get("namespace") or "default"), str(metadata["name"]))


def _reports(
    manifest: Manifest,
    manifests: Sequence[Manifest],
    fleet: Sequence[Manifest] | None,
    site: Site,
) -> list[PlanReport]:
    """Return the report, that of its prefill pods, and that of its canary; both need their places
    beside it."""
    report, pair = _report(manifest, manifests, fleet, site)
    reports = [report]
    if report.plan is not None and pair is not None:
        report = replace(report, pair=pair.verdict.words)
        supply = None
        if fleet is not None:
            supply = _supply(pair.prefill, pod_template(pair.prefill), fleet)
        key = pair.prefill.identity.key
        prefill = PlanReport(key, (), pair.prefill, supply, beside=report.plan)
        reports = [report, prefill]
    raw = manifest.get("spec") or {}
    spec = parse_spec(raw)
    if isinstance(spec, tuple) or spec.canary is None or report.plan is None:
        return reports
    name = canary_name(report.key)
    metadata = {**manifest["metadata"], "name": name}
    canary = {"metadata": metadata, "spec": canary_spec(raw, spec)}
    beside, _ = _report(canary, manifests, fleet, site)
    return [*reports, replace(beside, beside=report.plan)]


def _report(
    manifest: Manifest,
    manifests: Sequence[Manifest],
    fleet: Sequence[Manifest] | None,
    site: Site,
) -> tuple[PlanReport, PlannedPair | None]:
    key = _key(manifest)
    laid = _laid(manifest.get("spec") or {}, key.namespace, manifests, site)
    if isinstance(laid, tuple):
        return PlanReport(key, laid), None
    spec = laid.spec
    reference = spec.model.config_ref
    text = _config_text(manifests, reference.name, reference.key) if reference else None
    nodes = tuple(_of_kind(fleet or (), "Node"))
    devices = _devices(fleet or ())
    around = Surroundings(
        _IMAGES,
        nodes,
        devices=devices,
        site=site,
        known=ModelKnown(text),
        layers=SpecLayers(laid.profile),
    )
    considered = consider(Owner(key, ""), spec, around)
    plan = considered.plan
    if plan is None:
        return PlanReport(key, considered.problems), None
    supply = None if fleet is None else _supply(plan, pod_template(plan), fleet)
    return PlanReport(key, considered.problems, plan, supply), considered.pair


def _laid(
    raw: Mapping[str, Any], namespace: str, manifests: Sequence[Manifest], site: Site
) -> Laid | tuple[FieldProblem, ...]:
    """Lay the spec over its profile, as far as the files have it."""
    spec = parse_spec(raw)
    if isinstance(spec, tuple):
        return spec
    labels = {
        item["metadata"]["name"]: item["metadata"].get("labels") or {}
        for item in _of_kind(manifests, NAMESPACE.kind)
    }
    of = Namespace(namespace, labels.get(namespace))
    named = name_profile(spec, namespace, (of.labels or {}).get(LABEL_PROFILE))
    found = {
        item["metadata"]["name"]: item.get("spec") or {}
        for item in _of_kind(manifests, constants.PROFILE_KIND)
    }
    below = {constants.DEFAULT_PROFILE: site.defaults, **found}.get(named[0])
    return lay(raw, spec, named, below, namespace=of)


def _supply(plan: Plan, template: Manifest, fleet: Sequence[Manifest]) -> Supply | None:
    if plan.accelerator.resource_name is None:
        return None
    nodes, pods = Nodes(_of_kind(fleet, "Node")), placed_pods(_of_kind(fleet, "Pod"))
    return supply_of(plan, nodes, pods, _devices(fleet), pods_asked(plan, template))


def _devices(fleet: Sequence[Manifest]) -> DevicePicture:
    kinds = (RESOURCE_SLICE, RESOURCE_CLAIM, DEVICE_CLASS)
    return device_picture(*(_of_kind(fleet, kind.kind) for kind in kinds))


def report_document(report: PlanReport) -> dict[str, Any]:
    """Return the operator's own plan.json with the parts of its sizes and the warnings, the
    problems, or both."""
    result: dict[str, Any] = {**report.key._asdict(), "canStart": report.can_start}
    if report.problems:
        result["problems"] = [str(problem) for problem in report.problems]
    if report.plan is None:
        return result
    if report.plan.spec.warnings:
        result["warnings"] = list(report.plan.spec.warnings)
    if report.beside is not None:
        result["together"] = needs_of(report.plan, report.beside)
    if report.pair is not None:
        result["disaggregation"] = report.pair
    plan = json.loads(plan_config_map(report.plan)["data"]["plan.json"])
    return {
        **result,
        "plan": plan,
        "sizes": terms(report.plan.engine, report.plan.accelerator, report.plan.model),
    }


def _site(path: str) -> Site:
    found = _read(path)
    if len(found) > 1 or not all(isinstance(item, dict) for item in found):
        raise InputError(f"{path} must hold one object, the chart's values")
    try:
        return site_of_values(found[0] if found else {})
    except ValuesError as error:
        raise InputError(f"{path}: {error}") from error


def _read(path: str) -> list[Any]:
    """List every document of a YAML or JSON file."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        return read_documents(text)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path} is neither YAML nor JSON: {error}") from error


def _documents(path: str) -> list[Manifest]:
    """List every object of a YAML or JSON file, the items of lists included."""
    found = _read(path)
    objects: list[Manifest] = []
    for item in found:
        if not isinstance(item, dict):
            raise InputError(f"{path} holds {type(item).__name__} where an object is expected")
        objects.extend(item["items"] if isinstance(item.get("items"), list) else [item])
    for item in objects:
        metadata = item.get("metadata") if isinstance(item, dict) else None
        if not isinstance(metadata, dict) or not metadata.get("name"):
            raise InputError(f"{path} holds an object without metadata.name; give it one")
    return objects


def _of_kind(objects: Iterable[Manifest], kind: str) -> list[Manifest]:
    return [item for item in objects if item.get("kind") == kind]


def _config_text(manifests: Sequence[Manifest], name: str, key: str) -> str | None:
    for item in _of_kind(manifests, "ConfigMap"):
        if item["metadata"]["name"] == name:
            text = (item.get("data") or {}).get(key)
            return None if text is None else str(text)
    return None
