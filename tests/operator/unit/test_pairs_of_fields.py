"""Fields of a spec that meet: the plan accepts a spec if this version's engine starts with the
rendered arguments, and refuses it if the engine would; pods and frontends agree with each other.

The specs are drawn: any two fields change together in at least one of them.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atom.config import build_config
from atom.config_values import Config
from atom.entrypoints.cli import build_parser
from atom.entrypoints.serve_options import server_options
from atom.errors import AtomError
from atom_operator import constants
from atom_operator.canary_spec import canary_spec
from atom_operator.children.engine_container import engine_args
from atom_operator.children.render import render
from atom_operator.children.workload import pod_template
from atom_operator.constants import FRONTEND_COMPONENT, Reason
from atom_operator.domain import DEPLOYMENT, FieldProblem, Manifest, ObjectKey, Owner, Plan
from atom_operator.plan.model_facts import catalogue_config
from atom_operator.plan_report import facts
from atom_operator.preview import Preview, essentials, everything
from atom_operator.reconcile.planning import Surroundings, consider, plan_in_force, prefill_plan
from atom_operator.served_schema.manifest import judge
from atom_operator.validation.parsing import parse_spec
from tests.operator.unit.test_rendering import SITE
from tests.support.operator.builders_operator import IMAGES, KEY
from tests.support.operator.drawn_specs import FIELDS, MODELS, DrawnSpec, covering_specs
from tests.support.operator.pod_judges import pod_faults

AROUND = Surroundings(IMAGES, site=SITE)
PARSER = build_parser()
# Of the paths in a pod: files that the engine would read at its start.
_FILES = ("--handover-secret-file", "--api-key-file")
_DRAFTS = ("--method", "--num-speculative-tokens", "--speculative-config", "--draft-model")
_VARIABLE, _OF_GROUPS = re.compile(r"\$\((\w+)\)"), {"NODE_RANK": "0"}  # the kubelet's values
# Refusals that are the engine's own; others are about the cluster, or about pods.
_OF_ENGINES = (Reason.UNSUPPORTED_BY_ENGINE, Reason.IMPOSSIBLE_PARALLELISM)
_NOT_OF_ENGINES = (".gateway.", ".canary")
_ENDS = "the engine of this version ends at once"
_OF_FRONTENDS = ("cache", "tmp", "api-key", "peers", "hub-token", "models", "model-image")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The config.json of each kind of model, in a folder."""
    made = {}
    for kind, source in MODELS.items():
        made[kind] = tmp_path_factory.mktemp(kind)
        (made[kind] / "config.json").write_text(json.dumps(catalogue_config(source)))
    return made


def config_of(args: list[str], folder: Path) -> Config:
    """Return the engine's configuration by a pod's arguments. Raises `AtomError`."""
    words = [_VARIABLE.sub(lambda found: _OF_GROUPS.get(found[1], "2"), word) for word in args]
    words[words.index("--model") + 1] = str(folder)
    left_out = [*_FILES, *(_DRAFTS if "--draft-model" in args else ())]
    for flag in left_out:
        if flag in words:
            at = words.index(flag)
            del words[at : at + 2]
    return build_config(server_options(PARSER.parse_args(["serve", *words])).engine, weights=False)


def refusal_of(args: list[str], folder: Path) -> str:
    """Return why an engine ends with these arguments; empty if it starts."""
    try:
        config_of(args, folder)
    except AtomError as error:
        return str(error)
    return ""


def read_by_servers(config: Config) -> dict[str, Any]:
    """Return the part of a configuration that the server of a request reads."""
    model, scheduler = config.model, config.scheduler
    return {
        "images": model.max_images,
        "length": model.max_model_len,
        "sampling": (model.generation, model.eos_token_ids, model.pooling),
        "deadlines": (scheduler.deadline_ms, scheduler.deadline_action),
        "clients": (scheduler.fairness, scheduler.max_waiting_requests),
        "name": model.served_name,
        "adapters": config.lora,
        "reproducible": config.execution.reproducible,
    }


def engine_of(template: Manifest) -> list[str]:
    (found,) = (
        container["args"]
        for container in template["spec"]["containers"]
        if container["name"] == constants.ENGINE_CONTAINER
    )
    return list(found)


def faults_of_pods(plan: Plan, folder: Path) -> Iterator[str]:
    """Yield what is wrong with the pods of a plan that is accepted."""
    template = pod_template(plan)
    yield from pod_faults(template)
    args = engine_of(template)
    refusal, is_told = refusal_of(args, folder), any(_ENDS in each for each in plan.spec.warnings)
    own_image = plan.spec.default_image is None  # whose flags may be others
    if refusal and not (is_told or own_image):
        yield f"the engine ends: {refusal}"
    if is_told and not refusal and plan.engine.speculative.model is None:
        yield f"the engine starts, and the plan warns: {plan.spec.warnings}"
    if refusal:
        return
    for key, child in render(plan).items():
        if key.kind != DEPLOYMENT or key.name == plan.identity.key.name:
            continue
        beside = child["spec"]["template"]
        yield from (f"{key.name}: {fault}" for fault in pod_faults(beside))
        (container,) = beside["spec"]["containers"]
        if container["name"] == FRONTEND_COMPONENT:
            yield from faults_of_frontend(container, args, folder)


def faults_of_frontend(container: Manifest, args: list[str], folder: Path) -> Iterator[str]:
    """Yield where a frontend differs from the engine whose arguments are `args`."""
    if refusal := refusal_of(container["args"], folder):
        yield f"the frontend ends: {refusal}"
        return
    engine = read_by_servers(config_of(args, folder))
    front = read_by_servers(config_of(container["args"], folder))
    for name, value in engine.items():
        if front[name] != value:
            yield f"{name} of the frontend: {front[name]}, and of its engines: {value}"
    for mount in container["volumeMounts"]:
        if not mount["name"].startswith(("adapters", *_OF_FRONTENDS)):
            yield f"the frontend mounts {mount['name']}"


def faults_of(case: DrawnSpec, folder: Path) -> Iterator[str]:
    """Yield where plan, pods and engine disagree about a spec that the API server accepts."""
    spec = parse_spec(case.spec)
    if isinstance(spec, tuple):
        yield f"the API server accepts it, and it cannot be parsed: {spec[0]}"
        return
    found = consider(Owner(KEY, "uid"), spec, AROUND)
    if found.problems or found.plan is None:
        yield from faults_of_refusal(case, found.problems, folder)
        return
    plans = [found.plan, *([found.pair.prefill] if found.pair is not None else [])]
    if spec.canary is not None:
        canary = parse_spec(canary_spec(case.spec, spec))
        assert not isinstance(canary, tuple), canary
        beside = consider(Owner(ObjectKey(KEY.namespace, "chat-canary"), ""), canary, AROUND)
        assert beside.plan is not None, beside.problems
        plans.append(beside.plan)
    for plan in plans:
        assert [*facts(plan), *everything(Preview(plan)), *essentials(Preview(plan))]
        yield from faults_of_pods(plan, folder)


def faults_of_refusal(
    case: DrawnSpec, problems: tuple[FieldProblem, ...], folder: Path
) -> Iterator[str]:
    """Yield the refusals that are said to be the engine's, if it starts all the same."""
    own = [
        problem
        for problem in problems
        if problem.reason in _OF_ENGINES and not any(p in problem.field for p in _NOT_OF_ENGINES)
    ]
    if len(own) < len(problems):
        return  # something else is against it, too
    spec = parse_spec(case.spec)
    assert not isinstance(spec, tuple)
    forced = plan_in_force(Owner(KEY, "uid"), spec, "any", AROUND)
    assert forced is not None
    if forced.engine.speculative.model is not None:
        return  # the engine would need the draft model's files
    prefill = prefill_plan(forced, AROUND)
    plans = [forced, *([prefill] if isinstance(prefill, Plan) else [])]
    if not any(refusal_of(engine_args(plan), folder) for plan in plans):
        yield f"the engine starts, and the plan refuses: {problems[0]}"


def judged(cases: Iterator[DrawnSpec], folders: dict[str, Path]) -> int:
    """Judge specs; return how many of them the API server and the plan took."""
    number, found = 0, []
    for case in cases:
        manifest = {
            "apiVersion": constants.API_VERSION,
            "kind": constants.KIND,
            "metadata": {"name": KEY.name, "namespace": KEY.namespace},
            "spec": case.spec,
        }
        if judge(manifest).problems:
            continue
        number += 1
        found += [f"{case}: {fault}" for fault in faults_of(case, folders[case.model])]
    assert not found, "\n".join(found)
    return number


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of a mounted file."""
    monkeypatch.setenv("ATOM_HANDOVER_SECRET", "of-the-test-" * 4)


@pytest.mark.parametrize(
    "share", [0, *(pytest.param(share, marks=pytest.mark.whole) for share in range(1, 4))]
)
def test_plan_pods_and_engine_agree_about_any_two_fields(
    share: int, folders: dict[str, Path]
) -> None:
    cases = itertools.islice(covering_specs(seed=share), None if share else 50)
    assert judged(cases, folders) > 30


def test_any_two_fields_change_together() -> None:
    met = {
        pair
        for case in covering_specs(seed=1)
        for pair in itertools.combinations(sorted(case.changed), 2)
    }
    assert met == set(itertools.combinations(sorted(FIELDS), 2))
