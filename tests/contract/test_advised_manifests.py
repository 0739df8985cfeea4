"""What `kubectl atom advise` prints can be applied: the CRD and the operator's own rules accept it,
and the plan has the memory that the advice was computed with."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from atom.advisor.candidates import Candidate, candidates
from atom.advisor.extras import Adapters, Drafts
from atom.advisor.load import parse_load
from atom.advisor.manifest import manifest
from atom.advisor.question import Lost, ModelForm, Question, Variants
from atom.advisor.rates import Tables
from atom.advisor.room import Division, plan_form
from atom.advisor.rows import Row
from atom.advisor.simulation import Due
from atom.advisor.slo import Figures, parse_slo
from atom.advisor.traces import TraceDemand, TraceEntry
from atom.sizing import ModelFacts, valid_tensor_parallel_sizes
from atom.sizing.cards import CARDS, Vendor
from atom_operator import advise_command
from atom_operator.kubectl_atom import main
from atom_operator.plan.accelerators import PRODUCTS
from atom_operator.plan.model_facts import facts_from_catalogue
from atom_operator.plugin.kubectl import Kubectl
from benchmarks.workloads.shapes import SHAPES
from tests.support.operator.builders_operator import plan
from tests.support.random_search import examples

SLO = "ttft=5s,itl=1s@p90"
LOAD = "rate=1/s,in=64,out=4"


def advise(*arguments: str) -> int:
    return main(["advise", "--slo", SLO, "--load", LOAD, *arguments])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "arguments",
    [
        ("--model", "hf://Qwen/Qwen3-0.6B", "--cards", "MI300X", "--quant", "none"),
        ("--model", "hf://Qwen/Qwen3-0.6B", "--cards", "MI355X", "--quant", "fp8"),
        ("--model", "hf://Qwen/Qwen3-0.6B", "--cards", "H200", "--quant", "none"),
        ("--model", "hf://openai/gpt-oss-20b", "--cards", "MI325X"),
    ],
    ids=["amd", "quantised", "nvidia", "mxfp4"],
)
def test_the_manifest_of_the_choice_is_accepted_and_fits(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert advise(*arguments, "-o", "yaml") == 0
    path = tmp_path / "manifest.yaml"
    path.write_text(capsys.readouterr().out)
    assert main(["plan", "-f", str(path), "-o", "json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert report["canStart"] is True
    assert "problems" not in report


def test_a_model_of_a_file_states_its_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "My_Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SHAPES["tiny-12k"]))
    assert advise("--model", str(folder), "--cards", "MI300X", "--quant", "none", "-o", "yaml") == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text)["spec"]["model"]["source"] == "path:///models/My_Model"
    path = tmp_path / "manifest.yaml"
    path.write_text(text)
    assert main(["plan", "-f", str(path)]) == 0


def test_a_model_that_the_catalogue_lacks_is_an_error_with_a_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert advise("--model", "hf://Qwen/Qwen3-0.6Bb") == 2
    assert "did you mean hf://Qwen/Qwen3-0.6B" in " ".join(capsys.readouterr().err.split())


class RunningCluster:
    """Answers as kubectl, with one AtomDeployment whose steps take longer than the table's."""

    namespace = None

    def __init__(self, manifest: dict[str, Any]) -> None:
        self._items = [{**manifest, "status": {"steps": {"percentOfTable": 140, "pods": 1}}}]

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        assert arguments == ("get", "atomdeployments.serving.atom.dev", "-A")
        return self._items


def test_a_cluster_corrects_the_advice_for_the_model_that_it_serves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--model", "hf://Qwen/Qwen3-0.6B", "--cards", "H200", "--quant", "none")
    words += ("--max-devices", "1")
    assert advise(*words, "-o", "json") == 0
    before = json.loads(capsys.readouterr().out)
    parser = argparse.ArgumentParser()
    advise_command.add_arguments(parser)
    options = parser.parse_args(
        ["--slo", SLO, "--load", LOAD, *words, "-o", "json", "--from-cluster"]
    )
    cluster = cast(Kubectl, RunningCluster(before["manifest"]))
    assert advise_command.run(options, cluster) == 0
    after = json.loads(capsys.readouterr().out)
    seen = [each["rows"][0]["latencies"]["tpot"]["p50"]["middle"] for each in (before, after)]
    assert seen[1] == pytest.approx(1.4 * seen[0], rel=0.05)
    assert after["rows"][0]["evidence"]["learned"] == 1.4


def test_cards_have_the_memory_of_the_operators_products() -> None:
    products = {product.name: product.memory_gib for product in PRODUCTS if product.memory_gib}
    cards = {
        name: card.memory_bytes // 2**30
        for name, card in CARDS.items()
        if card.vendor is Vendor.AMD
    }
    assert cards == products


@pytest.mark.parametrize("product", ["MI300X", "MI355X"])
@pytest.mark.parametrize(
    "source",
    [
        "hf://Qwen/Qwen3-8B",
        "hf://Qwen/Qwen3-30B-A3B",
        "hf://openai/gpt-oss-120b",
        "hf://google/gemma-3-27b-it",
        "hf://Qwen/Qwen3-Next-80B-A3B-Instruct",
    ],
)
def test_the_advice_has_the_blocks_of_the_plan(source: str, product: str) -> None:
    facts = facts_from_catalogue(source).facts
    assert facts is not None
    for ranks in valid_tensor_parallel_sizes(facts):
        form = plan_form(Division(facts, CARDS[product], ranks), 512, 1000)
        capacity = plan(
            model={"source": source},
            parallelism={"tensor": ranks},
            engine={"maxModelLen": form.limits.max_model_len},
            accelerator={"product": product},
        ).capacity.capacity
        assert capacity is not None
        assert form.budget.num_blocks == capacity.num_blocks, ranks
        assert form.limits.max_num_seqs == (capacity.beside_kv.bounded_sequences or 512), ranks


LIST_IMPORTS = """
import sys
import atom.entrypoints.advise.command
found = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(*(name for name in found if not name.startswith(("_", "atom"))))
"""


def test_the_simulation_needs_only_the_packages_of_its_extras() -> None:
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    installed = {line.partition(">")[0] for line in (*extras["operator"], *extras["advisor"])}
    known = installed | {"msgspec", "re2", "yaml", "typing_extensions", "cython_runtime"}
    done = subprocess.run(
        [sys.executable, "-c", LIST_IMPORTS],
        env={"PYTHONPATH": "engine"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) - known == set()


EAGLE = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 4096,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "draft_vocab_size": 32000,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
DRAFTS = {
    "none": (),
    "ngram": (Drafts(method="ngram", tokens=5, acceptance=0.6),),
    "suffix": (Drafts(method="suffix", tokens=5, acceptance=0.6),),
    "mtp": (Drafts(method="mtp", tokens=2, acceptance=0.7),),
    "eagle3": (
        Drafts(
            method="eagle3",
            tokens=3,
            acceptance=0.7,
            model="hf://acme/eagle3",
            config=EAGLE,
            facts=ModelFacts.from_hf_config(EAGLE),
        ),
    ),
}
SMALL = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
DRAFTS["draft_model"] = (
    Drafts(
        method="draft_model",
        tokens=4,
        acceptance=0.8,
        model="hf://Qwen/Qwen3-0.6B",
        config=SMALL,
        facts=ModelFacts.from_hf_config(SMALL),
    ),
)
SOURCES = (
    *("hf://Qwen/Qwen3-8B", "hf://zai-org/GLM-4.5-Air", "hf://google/gemma-3-27b-it"),
    *("hf://Qwen/Qwen3-Next-80B-A3B-Instruct", "hf://openai/gpt-oss-120b"),
)
TRACE = TraceDemand(
    [
        TraceEntry(Due(float(number)), 900, 100, (("", 0), ("", 1 + number % 3)), 256)
        for number in range(8)
    ]
)
LOADS = {
    "rate": parse_load("rate=1/s,in=900,out=100"),
    "prefixes": parse_load("rate=1/s,in=900,out=100,prefix=0.6,prefixes=3"),
    "trace": TRACE,
}


@settings(max_examples=examples(12), deadline=None)
@given(
    source=st.sampled_from(SOURCES),
    card=st.sampled_from(("MI300X", "MI355X", "H200", "MI300X:cpx_nps4")),
    drafts=st.sampled_from(tuple(DRAFTS)),
    adapters=st.sampled_from(((), (Adapters(3, 16, 3),), (Adapters(24, 64, 4),))),
    tiers=st.sampled_from(((0, 0), (16, 0), (16, 200))),
    is_divided=st.booleans(),
    load=st.sampled_from(tuple(LOADS)),
    copies=st.sampled_from((1, 2)),
)
def test_the_manifest_of_each_form_is_planned_with_the_memory_of_the_advice(
    source: str,
    card: str,
    drafts: str,
    adapters: tuple[Adapters, ...],
    tiers: tuple[int, int],
    is_divided: bool,
    load: str,
    copies: int,
) -> None:
    """Rows are taken although others may be cheaper: of each number of devices the form with the
    most of what was asked for."""
    facts = facts_from_catalogue(source).facts
    known = Tables.packaged().card(card)
    assert facts is not None
    assert known is not None
    host, files = (tuple([size * 2**30] if size else []) for size in tiers)
    asked = Question(
        models=(ModelForm(label="m", source=source, facts=facts),),
        slo=parse_slo("ttft=99s@p90"),
        load=LOADS[load],
        cards=(known,),
        tables=Tables.packaged(),
        max_devices=16,
        prices={},
        variants=Variants(
            host_sizes=host,
            file_sizes=files,
            drafts=DRAFTS[drafts],
            adapters=adapters,
            divides=is_divided,
        ),
    )
    answers = list(candidates(asked))
    assert all(each.why for each in answers if isinstance(each, Lost))
    forms = [each for each in answers if isinstance(each, Candidate)]
    assert len({each.label for each in forms}) == len(forms), "labels tell forms apart"
    for ranks in {each.ranks for each in forms}:
        found = [each for each in forms if each.ranks == ranks][-1]
        check_planned(row_of(found, 1 if found.divided or 2 * ranks > 8 else copies))


def row_of(candidate: Candidate, copies: int) -> Row:
    figures = cast(Figures, None)
    return Row(
        candidate=candidate, pods=2, copies=copies, figures=figures, slow=figures, fast=figures,
        misses=(),
    )  # fmt: skip


def check_planned(row: Row) -> None:
    """The operator accepts the manifest, and plans the blocks that the advice was computed with."""
    spec, form = manifest(row)["spec"], row.candidate.form
    planned = plan(**spec)
    capacity = planned.capacity.capacity
    assert capacity is not None, planned.capacity.message
    assert capacity.num_blocks == form.budget.num_blocks * row.copies, row.label
    bounded = capacity.beside_kv.bounded_sequences
    assert form.limits.max_num_seqs == (bounded or planned.engine.scheduler.max_num_seqs)
    serving = planned.engine.serving
    assert serving.host_tier_bytes == form.host_bytes * row.copies
    files = 0 if serving.disk_tier is None else serving.disk_tier.size_bytes
    assert files == form.file_bytes * row.copies


@pytest.mark.parametrize("of", ["tier", "pair"])
def test_a_manifest_with_a_tier_or_two_roles_is_planned(
    of: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such a row is taken although another one is cheaper."""
    facts = facts_from_catalogue("hf://Qwen/Qwen3-8B").facts
    assert facts is not None
    asked = Question(
        models=(ModelForm(label="m", source="hf://Qwen/Qwen3-8B", facts=facts),),
        slo=parse_slo("ttft=9s@p90"),
        load=LOADS["rate"],
        cards=(CARDS["MI300X"],),
        tables=Tables.packaged(),
        max_devices=2,
        prices={},
        variants=Variants(host_sizes=(16 * 2**30,), divides=True),
    )
    found = next(
        each
        for each in candidates(asked)
        if isinstance(each, Candidate) and (each.divided if of == "pair" else each.host_bytes)
    )
    path = tmp_path / "manifest.yaml"
    path.write_text(yaml.safe_dump(manifest(row_of(found, 1))))
    assert main(["plan", "-f", str(path)]) == 0, capsys.readouterr().err
    told = capsys.readouterr().out
    assert ("host" if of == "tier" else "prefill") in told
