"""Models without a family: each is planned with a warning, and each setting that the engine has not
proven is refused by its field; the webhook and `plan` give the same verdict."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from atom.sizing.families.fallback import FALLBACKS
from atom.sizing.options.beside_fallback import REFUSED_BESIDE_FALLBACK
from atom_operator.__main__ import main
from atom_operator.domain import FieldProblem, Owner
from atom_operator.reconcile.planning import Considered, Surroundings, consider
from atom_operator.webhook.admission_review import parse_review
from atom_operator.webhook.reviewer import Reviewer
from tests.operator.unit.test_rendering import SITE
from tests.support.operator.builders_admission import creation
from tests.support.operator.builders_operator import (
    IMAGES,
    KEY,
    atom_deployment,
    parsed,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster

AMD: dict[str, Any] = {"accelerator": {"type": "amd", "product": "MI300X"}}
FAMILY = {"model": {"source": "hf://Qwen/Qwen3-8B"}, **AMD}
# Of each option of the table: the part of the spec that asks for it, the field, and the name that
# the remedy gives.
_LORA, _DRAFTS, _ROLES = "spec.engine.lora", "spec.engine.speculative", "spec.disaggregation"
_TIER, _DATA, _EXTRA = "spec.cache.kv.hostMemory", "spec.parallelism.data", "spec.engine.extraArgs"
_CACHE, _SAME = "spec.engine.kvCacheDtype", "spec.engine.reproducible"
ASKED: dict[str, tuple[dict[str, Any], str, str]] = {
    "data_parallel_size": ({"parallelism": {"data": 2}}, _DATA, _DATA),
    "enable_lora": ({"engine": {"lora": {}}}, _LORA, _LORA),
    "enable_sleep_mode": (
        {"engine": {"extraArgs": ["--enable-sleep-mode"]}}, _EXTRA, "--enable-sleep-mode",
    ),
    "kv_cache_dtype": ({"engine": {"kvCacheDtype": "fp8"}}, _CACHE, _CACHE),
    "kv_offloading_size": ({"cache": {"kv": {"hostMemory": "8Gi"}}}, _TIER, _TIER),
    "kv_transfer_config": ({"disaggregation": {"prefill": {}}}, _ROLES, _ROLES),
    "reproducible": ({"engine": {"reproducible": True}}, _SAME, _SAME),
    "runner": ({"engine": {"extraArgs": ["--runner=pooling"]}}, _EXTRA, "--runner"),
    "speculative_config": (
        {"engine": {"speculative": {"method": "ngram", "tokens": 2}}}, _DRAFTS, _DRAFTS,
    ),
}  # fmt: skip


def model(name: str) -> dict[str, Any]:
    """A model of the class in drawn sizes."""
    draw = random.Random(name)
    heads, size = draw.choice((8, 12, 16)), draw.choice((64, 128))
    config = {
        "architectures": [name],
        "model_type": FALLBACKS[name].model_type,
        "hidden_size": heads * size,
        "num_attention_heads": heads,
        "num_hidden_layers": draw.randint(4, 30),
        "intermediate_size": 4 * heads * size,
        "vocab_size": draw.randint(20_000, 60_000),
        "max_position_embeddings": draw.choice((1024, 2048)),
        "torch_dtype": "bfloat16",
    }
    return {"model": {"source": "hf://example/model", "config": config}, **AMD}


def considered(**changes: Any) -> Considered:
    return consider(Owner(KEY, "uid"), parsed(**changes), Surroundings(IMAGES, site=SITE))


def merged(base: dict[str, Any], names: list[str]) -> dict[str, Any]:
    found = dict(base)
    for name in names:
        for key, value in ASKED[name][0].items():
            known = found.get(key, {})
            args = [*known.get("extraArgs", []), *value.get("extraArgs", [])]
            found[key] = {**known, **value, **({"extraArgs": args} if args else {})}
    return found


def drawn(name: str) -> list[list[str]]:
    """Two settings and three together, others for each class."""
    draw = random.Random(f"settings of {name}")
    return [draw.sample(sorted(ASKED), count) for count in (2, 3)]


async def review(**changes: Any) -> tuple[str, ...]:
    """The webhook's words about a dry run."""
    cluster = FakeCluster()
    reviewer = Reviewer(cluster, reconciler(cluster, site=SITE).decider, answer_seconds=60)
    verdict = await reviewer.review(parse_review(creation(**changes)))
    return verdict.warnings if verdict.refusal is None else (verdict.refusal,)


def planned(capsys: Any, folder: Path, **changes: Any) -> tuple[int, dict[str, Any]]:
    path = folder / "all.yaml"
    path.write_text(yaml.safe_dump(atom_deployment(**changes)))
    status = main(["plan", "-f", str(path), "-o", "json"])
    return status, json.loads(capsys.readouterr().out)[0]


def _is_of_prefill(problem: FieldProblem) -> bool:
    """Return whether a problem is of the pods that compute prompts, which have the same engine."""
    return problem.field == "spec.disaggregation.prefill"


def unproven(name: str) -> str:
    return f"{REFUSED_BESIDE_FALLBACK[name]} with a model that has no family here is not proven"


def test_each_option_of_the_engines_table_has_a_field() -> None:
    assert ASKED.keys() == REFUSED_BESIDE_FALLBACK.keys()


@pytest.mark.parametrize("name", FALLBACKS)
async def test_each_class_is_planned_with_the_notice(
    tmp_path: Path, capsys: Any, name: str
) -> None:
    spec = model(name)
    found = considered(**spec)
    assert (found.problems, found.plan is not None) == ((), True)
    assert found.plan is not None
    (warning,) = (each for each in found.plan.spec.warnings if name in each)
    assert warning.startswith(f"spec.model: {name} has no family here: transformers' class")
    assert any(warning in line for line in await review(**spec))
    assert any(warning in line for line in await review(dry_run=False, **spec))
    status, report = planned(capsys, tmp_path, **spec)
    assert status == 0
    assert warning in report["warnings"]


@pytest.mark.parametrize("name", FALLBACKS)
async def test_settings_that_are_not_proven_are_refused_alike(
    tmp_path: Path, capsys: Any, name: str
) -> None:
    for names in drawn(name):
        spec = merged(model(name), names)
        problems = considered(**spec).problems
        for each in ASKED:
            found = [problem for problem in problems if unproven(each) in problem.message]
            fields = {problem.field for problem in found if not _is_of_prefill(problem)}
            assert fields == ({ASKED[each][1]} if each in names else set())
            assert all(f"leave {ASKED[each][2]} out" in problem.message for problem in found)
            assert {problem.reason.value for problem in found} <= {"UnsupportedByEngine"}
        status, report = planned(capsys, tmp_path, **spec)
        assert status == 1
        told = await review(**spec)
        for each in names:
            assert any(unproven(each) in line for line in told)
            assert unproven(each) in json.dumps(report["problems"])


@pytest.mark.parametrize("name", ASKED)
def test_one_setting_is_refused_for_a_fallback_alone(name: str) -> None:
    assert unproven(name) in str(considered(**merged(model("OPTForCausalLM"), [name])).problems)
    assert "no family" not in str(considered(**merged(FAMILY, [name])))
