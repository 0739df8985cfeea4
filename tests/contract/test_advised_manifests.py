"""What `kubectl atom advise` prints can be applied: the CRD and the operator's own rules accept it,
and the plan has the memory that the advice was computed with."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from atom.advisor.room import Division, plan_form
from atom.sizing import valid_tensor_parallel_sizes
from atom.sizing.cards import CARDS, Vendor
from atom_operator.kubectl_atom import main
from atom_operator.plan.accelerators import PRODUCTS
from atom_operator.plan.model_facts import facts_from_catalogue
from benchmarks.workloads.shapes import SHAPES
from tests.support.operator.builders_operator import plan

SLO = "ttft=5s,itl=1s@p90"
LOAD = "rate=1/s,in=64,out=4"


def advise(*arguments: str) -> int:
    return main(["advise", "--slo", SLO, "--load", LOAD, *arguments])


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
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(capsys.readouterr().out)
    assert main(["plan", "-f", str(manifest), "-o", "json"]) == 0
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
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(text)
    assert main(["plan", "-f", str(manifest)]) == 0


def test_a_model_that_the_catalogue_lacks_is_an_error_with_a_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert advise("--model", "hf://Qwen/Qwen3-0.6Bb") == 2
    assert "did you mean hf://Qwen/Qwen3-0.6B" in " ".join(capsys.readouterr().err.split())


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
