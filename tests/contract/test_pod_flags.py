"""Every flag of the engine is decided for spec.engine.extraArgs: it belongs to a field, the plan
reads it, it is harmless, or it is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pytest

from atom.entrypoints.cli import build_parser
from atom.entrypoints.flags.engine_args import refusal_of
from atom.entrypoints.flags.flag_parser import FlagParser
from atom.entrypoints.flags.flag_row import FlagVerdict
from atom.entrypoints.flags.other_flags import OTHER_FLAGS
from atom.entrypoints.serve import add_serve_arguments
from atom.entrypoints.serve_options import check_beside_workers
from atom.entrypoints.server_args import add_log_level
from atom.sizing.options.pod_flags import POD_FLAGS, PodUse, pod_flag
from atom_operator.api.crd import structural_schema
from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.children.beside_engines.frontend_container import frontend_args
from atom_operator.children.engine_container import engine_args
from atom_operator.domain import FieldProblem
from atom_operator.plan_arithmetic import arithmetic
from atom_operator.validation.rules import validate
from tests.support.operator.builders_operator import parsed
from tests.support.operator.builders_operator import plan as make_plan


def parser() -> FlagParser:
    made = FlagParser()
    add_serve_arguments(made)
    add_log_level(made, "info")
    return made


PARSER, LINE = parser(), build_parser()
ACTIONS = {word: each for each in PARSER._actions for word in each.option_strings}
ALIASES = [
    (alias, row.note)
    for row in OTHER_FLAGS
    if row.verdict is FlagVerdict.SAME
    for alias in row.flags
]
OWN = {flag: row for flag in ACTIONS if (row := pod_flag(flag)) is not None}
# Values that nothing in the parser tells; words before them let the engine take the flag.
VALUES: dict[str, list[str]] = {
    "--quantization": ["fp8"],
    "--online-quant-config": ['{"global_quant_config": "int8"}'],
    "--override-generation-config": ['{"temperature": 0.5}'],
    "--default-chat-template-kwargs": ['{"enable_thinking": false}'],
    "--op-backend": ["experts=triton"],
    "--eplb-config": ['{"num_redundant_experts": 2}'],
    "--dtype": ["float32"],
    "--backend": ["triton"],
    "--kv-events-config": ['{"enable_kv_cache_events": true}'],
    "--otlp-traces-endpoint": ["http://collector:4318/v1/traces"],
    "--fairness-header": ["x-tenant"],
    "--allowed-origins": ["https://chat.example.com"],
    "--allowed-media-domains": ["images.example.com"],
    "--page-mcp-hosts": ["https://tools.example.com"],
    "--root-path": ["/models/small"],
    "--body-memory-mib": ["64"],
    "--responses-store-mib": ["64"],
    "--tool-call-parser": ["hermes"],
    "--reasoning-parser": ["qwen3"],
    "--load-format": ["dummy"],
    "--log-level": ["debug"],
    "--kv-transfer-max-held-fraction": ["0.25"],
    "--expert-exchange": ["mori"],
}
BEFORE: dict[str, list[str]] = {
    "--sleep-queue": ["--enable-sleep-mode"],
    "--eplb-config": ["--enable-eplb"],
}
OF_FILES = ("--fairness-weights", "--allowed-local-media-path")  # which this machine has not
SHARED = {"parallelism": {"data": 2, "expert": True}}
GPU = {"type": "amd", "product": "MI355X"}
SCENES: tuple[dict[str, Any], ...] = (
    {"model": {"source": "hf://Qwen/Qwen3-8B"}},
    {"model": {"source": "path:///models/atom-tiny-eyes"}},
    {"model": {"source": "hf://openai/gpt-oss-20b"}},
    {"model": {"source": "hf://Qwen/Qwen3-30B-A3B"}, **SHARED},
)
# These need ranks that share experts, and the others a model of each kind.
OF_SHARED = ("--enable-eplb", "--eplb-config", "--expert-exchange")


def own_words(flag: str) -> list[str]:
    """Return the flag with a value that the engine takes."""
    action = ACTIONS[flag]
    if action.nargs == 0:
        return [flag]
    if flag in VALUES:
        return [flag, *VALUES[flag]]
    if action.choices:
        return [flag, str([*action.choices][-1])]
    return [flag, "/data" if action.type is None or flag in OF_FILES else "2"]


def of_use(*uses: PodUse) -> list[str]:
    named = {ACTIONS[flag].option_strings[0] for flag, row in OWN.items() if row.use in uses}
    return sorted(flag for flag in named if not flag.startswith("--no-"))


def spellings(use: PodUse) -> Iterator[tuple[str, str]]:
    """Yield each spelling of a flag with this use, and the flag; other servers' words too."""
    for flag, row in OWN.items():
        if row.use is use:
            yield flag, flag
            if "-" in flag[2:]:
                yield f"--{flag[2:].replace('-', '_')}", flag
    for alias, meant in ALIASES:
        if OWN[meant].use is use:
            yield alias, meant


def problems_of(words: Sequence[str], **changes: Any) -> list[FieldProblem]:
    found = validate(parsed(engine={"extraArgs": [*words]}, **changes))
    return [each for each in found if each.field.startswith("spec.engine.extraArgs")]


@cache
def planned(number: int, words: tuple[str, ...]) -> tuple[Any, ...]:
    """Return all numbers of the plan of a scene beside its command line."""
    scene = SCENES[number]
    plan = make_plan(**{"accelerator": GPU, **scene, "engine": {"extraArgs": [*words]}})
    return (
        plan.capacity.capacity,
        plan.capacity.message,
        plan.pods.host_bytes,
        plan.pods.disk_bytes,
        plan.rollout,
        tuple(arithmetic(plan)),
    )


def test_every_flag_is_decided() -> None:
    assert sorted(set(ACTIONS) - set(OWN)) == [], "give them a row of sizing/options/pod_flags.py"
    assert sorted(set(POD_FLAGS) - set(ACTIONS)) == [], "rows of flags that do not exist"
    assert {row.use for row in OWN.values()} == set(PodUse)


@pytest.mark.parametrize(("spelling", "flag"), spellings(PodUse.FIELD))
def test_the_flag_of_a_field_is_refused_and_names_it(spelling: str, flag: str) -> None:
    (found,) = problems_of([f"{spelling}=1"])
    field = OWN[flag].note
    remedy = f"use spec.{field}" if field else "the operator sets it; leave it out"
    assert found.message == f"{spelling} belongs to the operator: {remedy}"


def test_the_field_of_a_flag_exists() -> None:
    schema = structural_schema(AtomDeploymentSpec)
    for row in OWN.values():
        found = schema
        for name in filter(None, row.note.split(".") if row.use is PodUse.FIELD else ()):
            found = found["properties"][name]


@pytest.mark.parametrize(("spelling", "flag"), spellings(PodUse.REFUSED))
def test_a_flag_that_breaks_pods_is_refused_with_the_remedy(spelling: str, flag: str) -> None:
    (found,) = problems_of([f"{spelling}=1"])
    assert found.message == f"{spelling} is refused: {OWN[flag].note}"
    assert "; " in OWN[flag].note, "a remedy"


@pytest.mark.parametrize("flag", of_use(PodUse.PLANNED))
def test_the_plan_reads_the_value(flag: str) -> None:
    assert problems_of(own_words(flag)) == []
    before = tuple(BEFORE.get(flag, ()))
    words = (*before, *own_words(flag))
    if flag == "--enable-eplb":
        words += ("--eplb-config", *VALUES["--eplb-config"])
    scenes = [3] if flag in OF_SHARED else [0, 1, 2]
    assert any(planned(each, words) != planned(each, before) for each in scenes)


@pytest.mark.parametrize("flag", of_use(PodUse.HARMLESS))
def test_the_plan_does_not_depend_on_the_flag(flag: str) -> None:
    assert problems_of(own_words(flag)) == []
    before = tuple(BEFORE.get(flag, ()))
    assert planned(0, (*before, *own_words(flag))) == planned(0, before)


# A file of the pod, and what a spec with a frontend has no use for.
NOT_BESIDE_FRONTENDS = (*OF_FILES, "--api-server-count")


@pytest.mark.parametrize(
    "flag",
    sorted({*of_use(PodUse.HARMLESS, PodUse.PLANNED)} - {*NOT_BESIDE_FRONTENDS}),
)
def test_engine_and_frontend_take_the_flag(flag: str) -> None:
    words = [*BEFORE.get(flag, ()), *own_words(flag)]
    scene = SCENES[3] if flag in OF_SHARED else SCENES[0]
    plan = make_plan(accelerator=GPU, **scene, frontend={}, engine={"extraArgs": words})
    for line in (engine_args(plan), frontend_args(plan)):
        args = LINE.parse_args(["serve", *line])
        assert refusal_of(args) is None
        if args.worker_urls:
            check_beside_workers(args)


def test_an_argument_that_this_version_does_not_know_hides_no_other() -> None:
    words = ("--of-tomorrow", "3", "--quantization", "fp8", "--seed=much")
    assert planned(0, words) != planned(0, ())
    assert planned(0, words)[:3] == planned(0, ("--quantization", "fp8"))[:3]
