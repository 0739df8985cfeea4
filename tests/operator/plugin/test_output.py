"""What `kubectl atom` prints fits the terminal, loses no word, and ends quietly with its reader."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from atom_operator.plugin.gpus_view import gpu_document, gpu_lines
from atom_operator.plugin.output import wrapped
from atom_operator.plugin.status_view import status_document, status_lines
from atom_operator.plugin.top_view import Sample, parse, top_document, top_lines
from tests.operator.unit.test_plugin_views import AFTER, BEFORE, METRICS
from tests.support.operator.builders_operator import gpu_node, gpu_pod
from tests.support.operator.situations import SITUATIONS, situation

ROOT = Path(__file__).resolve().parents[3]
WIDTHS = (20, 40, 80, 132)
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def atom(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT / "operator"), str(ROOT / "engine")]
    return subprocess.run(
        [sys.executable, "-m", "atom_operator.kubectl_atom", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("columns", WIDTHS)
def test_a_wrapped_line_fits_and_has_every_word(columns: int) -> None:
    draw = random.Random(columns)
    for _ in range(300):
        words = ["x" * draw.choice((1, 3, 8, 15, 90)) for _ in range(draw.randint(1, 40))]
        stem = draw.choice(("", "│  ├─ ", "   └─ ", "  ", "- Ready   False   ", "1. "))
        line = stem + " ".join(words)
        parts = list(wrapped(line, columns))
        assert all(len(part) <= columns for part in parts), parts
        assert "".join(parts).replace(" ", "").replace("│", "").count("x") == line.count("x")


@pytest.mark.parametrize("name", SITUATIONS)
async def test_the_tree_fits_in_every_situation(name: str) -> None:
    parent = await situation(name)
    lines = list(status_lines(parent, [], []))
    for columns in WIDTHS:
        assert all(len(part) <= columns for line in lines for part in wrapped(line, columns))


@pytest.mark.parametrize("columns", WIDTHS)
def test_tables_fit(columns: int) -> None:
    nodes = [gpu_node(f"a-node-with-a-long-name-{number}") for number in range(3)]
    pods = [gpu_pod("chat-1", "a-node-with-a-long-name-0", 4, of="chat")]
    look = [parse(METRICS.format(**numbers)) for numbers in (BEFORE, AFTER)]
    samples = [Sample("chat-7c9d8f6b5-x2x4z", *look), Sample("chat-2", None, None)]
    for lines in (gpu_lines(nodes, pods, columns), top_lines(samples, 2.0, columns)):
        found = list(lines)
        assert all(len(part) <= columns for line in found for part in wrapped(line, columns))
        assert any("chat" in line for line in found)


async def test_documents_are_json_and_yaml_alike() -> None:
    look = [parse(METRICS.format(**numbers)) for numbers in (BEFORE, AFTER)]
    documents: list[Any] = [
        gpu_document([gpu_node("a")], [gpu_pod("chat-1", "a", 4, of="chat")]),
        top_document([Sample("chat-1", *look)], 2.0),
        status_document(await situation("serving"), [], []),
    ]
    for document in documents:
        assert yaml.safe_load(yaml.safe_dump(document)) == json.loads(json.dumps(document))
    assert documents[0][0]["free"] == 4
    assert documents[1][0]["tokensPerSecond"] == "250"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("example", EXAMPLES[:2], ids=lambda path: path.stem)
def test_no_line_of_a_plan_is_wider_than_the_terminal(example: Path) -> None:
    done = atom("plan", "-f", str(example), COLUMNS="80")
    assert done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    whole = atom("plan", "-f", str(example), COLUMNS="")
    assert done.stdout.split() == whole.stdout.split()


def test_a_plan_is_yaml_where_that_is_asked_for() -> None:
    path = str(EXAMPLES[0])
    as_yaml, as_json = (atom("plan", "-f", path, "-o", kind).stdout for kind in ("yaml", "json"))
    assert yaml.safe_load(as_yaml) == json.loads(as_json)


def plan_of(source: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    manifest = {
        "apiVersion": "serving.atom.dev/v1alpha1",
        "kind": "AtomDeployment",
        "metadata": {"name": "x"},
        "spec": {"model": {"source": source}, "accelerator": {"product": "MI300X"}},
    }
    path = tmp_path / "typo.yaml"
    path.write_text(yaml.safe_dump(manifest))
    return atom("plan", "-f", str(path))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("source", "meant"),
    [
        ("hf://Qwen/Qwen3-8C", "did you mean hf://Qwen/Qwen3-8B?"),
        ("hf://qwen/qwen3-8b", "did you mean hf://Qwen/Qwen3-8B?"),
        ("hf://nobody/has-this", "correct it if it is misspelt"),
    ],
)
def test_a_model_of_the_hub_that_is_unknown_is_an_error(
    source: str, meant: str, tmp_path: Path
) -> None:
    done = plan_of(source, tmp_path)
    said = " ".join(done.stderr.split())
    assert done.returncode == 2
    assert f"error: x: spec.model.source: nothing was planned, because {source} is not" in said
    assert meant in said
    assert "spec.model.configRef" in said


def test_a_model_of_the_sites_own_that_is_unknown_is_warned_about(tmp_path: Path) -> None:
    done = plan_of("pvc://models/acme", tmp_path)
    assert done.returncode == 0
    assert "warning: x: spec.model.source: nothing was planned" in " ".join(done.stderr.split())


def test_a_reader_that_has_enough_ends_the_command_quietly() -> None:
    paths = os.pathsep.join([str(ROOT / "operator"), str(ROOT / "engine")])
    # One that can start: what cannot ends with 1, whoever reads it.
    example = ROOT / "examples/qwen3-8b-whole-node.yaml"
    command = f"{sys.executable} -m atom_operator.kubectl_atom plan -f {example} -o json"
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -c 1; exit ${{PIPESTATUS[0]}}"],
        env={**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.returncode in (0, 141)
