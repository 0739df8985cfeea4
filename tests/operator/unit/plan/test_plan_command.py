"""`plan` prints what the operator would decide, from files alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from atom_operator.__main__ import main
from atom_operator.domain import ATOM_DEPLOYMENT
from atom_operator.kubectl_atom import main as kubectl_atom
from tests.support.operator.builders_operator import (
    KEY,
    TINY_CONFIG,
    atom_deployment,
    cluster_with,
    gpu_node,
    gpu_pod,
    reconciler,
)

QWEN = {"model": {"source": "hf://Qwen/Qwen3-8B"}, "replicas": 2}
MI300X = {"type": "amd", "product": "MI300X"}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def to_file(name: str, *objects: Any) -> str:
        path = tmp_path / name
        path.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
        return str(path)

    return to_file


async def test_the_numbers_are_those_that_the_operator_writes(write: Any, capsys: Any) -> None:
    changes = {**QWEN, "accelerator": MI300X}
    cluster = cluster_with(**changes)
    await reconciler(cluster).reconcile(KEY)
    capacity = cluster.find(ATOM_DEPLOYMENT, "chat")["status"]["capacity"]
    path = write("chat.yaml", atom_deployment(**changes))
    assert main(["plan", "-f", path]) == 0
    text = capsys.readouterr().out
    assert text.startswith("AtomDeployment default/chat\n")
    assert f"{capacity['kvTokens']:,} tokens" in text
    for row in capacity["concurrency"]:
        assert f"at {row['contextTokens']:,} tokens" in text
    assert kubectl_atom(["plan", "-f", path, "-o", "json"]) == 0
    (printed,) = json.loads(capsys.readouterr().out)
    assert printed["plan"]["capacity"]["capacity"]["kv_tokens"] == capacity["kvTokens"]


def test_the_text_part_of_a_multimodal_model_is_planned_as_such(write: Any, capsys: Any) -> None:
    gemma = {"source": "hf://google/gemma-3-4b-it"}
    path = write("gemma.yaml", atom_deployment(model=gemma, accelerator=MI300X))
    assert main(["plan", "-f", path]) == 0
    text = capsys.readouterr().out
    assert "Gemma3ForCausalLM, the text part of Gemma3ForConditionalGeneration" in text


@pytest.mark.parametrize(
    ("accelerator", "engine", "size"),
    [
        (MI300X, {}, "4 GiB"),
        (MI300X, {"imageMemoryMib": 512}, "512 MiB"),
        ({"type": "cpu", "memory": "10Gi"}, {}, "512 MiB"),
        ({"type": "cpu", "memory": "100Gi"}, {}, "4 GiB"),
        ({"type": "cpu", "memory": "10Gi"}, {"imageMemoryMib": 64}, "64 MiB"),
    ],
)
def test_a_model_that_reads_images_has_memory_for_those_of_requests(
    write: Any, capsys: Any, accelerator: Any, engine: dict[str, Any], size: str
) -> None:
    eyes = {"source": "path:///models/atom-tiny-eyes"}
    spec = atom_deployment(model=eyes, accelerator=accelerator, engine=engine)
    main(["plan", "-f", write("eyes.yaml", spec)])
    text = capsys.readouterr().out
    assert "images of requests" in text
    assert f"at most {size} of the host's memory" in text


def test_what_does_not_fit_ends_with_1_and_the_remedy(write: Any, capsys: Any) -> None:
    llama = {"source": "hf://meta-llama/Llama-3.3-70B-Instruct"}
    accelerator = {"type": "amd", "product": "MI210"}
    path = write("big.yaml", atom_deployment(model=llama, accelerator=accelerator))
    assert main(["plan", "-f", path]) == 1
    text = capsys.readouterr().out
    assert "no, WeightsDoNotFit" in text
    assert "set spec.accelerator.product to MI325X (256 GiB)" in text
    assert "start-up budget" not in text


def test_a_spec_that_is_not_accepted_names_every_field(write: Any, capsys: Any) -> None:
    bad = atom_deployment(parallelism={"tensor": 3}, engine={"extraArgs": ["--host=::"]})
    assert main(["plan", "-f", write("bad.yaml", bad)]) == 1
    text = capsys.readouterr().out
    assert "spec.parallelism.tensor" in text
    assert "spec.engine.extraArgs[0]" in text


def test_nodes_say_how_many_replicas_find_a_place(write: Any, capsys: Any) -> None:
    manifest = write("chat.yaml", atom_deployment(**QWEN, accelerator=MI300X))
    nodes = [gpu_node("a"), gpu_node("b", cordoned=True)]
    fleet = {"kind": "List", "items": [*nodes, gpu_pod("x", "a", 7)]}
    assert main(["plan", "-f", manifest, "--nodes", write("nodes.yaml", fleet)]) == 1
    text = capsys.readouterr().out
    assert "1 of 2 replicas find a place now" in text
    assert "1 of 8 amd.com/gpu free" in text
    assert "free; cordoned" in text
    assert main(["plan", "-f", manifest, "--nodes", write("free.yaml", *nodes)]) == 0
    assert "2 of 2 replicas" in capsys.readouterr().out


def test_the_memory_of_the_nodes_fills_in_for_a_missing_product(write: Any, capsys: Any) -> None:
    manifest = write("chat.yaml", atom_deployment(**QWEN, accelerator={"type": "amd"}))
    assert main(["plan", "-f", manifest]) == 0
    assert "AcceleratorMemoryUnknown" in capsys.readouterr().out
    assert main(["plan", "-f", manifest, "--nodes", write("nodes.yaml", gpu_node("a"))]) == 0
    assert "192 GiB each" in capsys.readouterr().out


def test_a_config_map_in_the_same_file_is_used(write: Any, capsys: Any) -> None:
    model = {"source": "hf://acme/private", "configRef": {"name": "shape"}}
    shape = {
        "kind": "ConfigMap",
        "metadata": {"name": "shape"},
        "data": {"config.json": json.dumps(TINY_CONFIG)},
    }
    assert main(["plan", "-f", write("both.yaml", atom_deployment(model=model), shape)]) == 0
    assert "model facts from ConfigMap shape" in capsys.readouterr().out
    assert main(["plan", "-f", write("one.yaml", atom_deployment(model=model))]) == 0
    assert "ConfigMap shape, key config.json does not exist" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{kind: Service, metadata: {name: x}}", "has no AtomDeployment"),
        ("a: [", "neither YAML nor JSON"),
        ("- 1", "where an object is expected"),
        ("kind: AtomDeployment", "an object without metadata.name"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, capsys: Any, content: str | None, words: str
) -> None:
    path = tmp_path / "input.yaml"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    assert main(["plan", "-f", str(path)]) == 2
    assert words in capsys.readouterr().err


def test_the_values_of_the_chart_say_what_the_sites_engines_can_do(write: Any, capsys: Any) -> None:
    """A manifest that the installed operator accepts passes in CI too."""
    wide = atom_deployment(
        model={"source": "hf://meta-llama/Llama-3.3-70B-Instruct"},
        accelerator=MI300X,
        parallelism={"tensor": 8},
    )
    path = write("wide.yaml", wide)
    assert main(["plan", "-f", path]) == 0
    values = write("values.yaml", {"engine": {"maxTensorParallel": 4}, "replicas": 2})
    capsys.readouterr()
    assert main(["plan", "-f", path, "--values", values]) == 1
    assert "spec.parallelism.tensor: 8 is not supported" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"engine": {"features": ["telepathy"]}}, "telepathy"),
        ({"engine": 8}, "engine must be an object"),
    ],
)
def test_values_that_no_plan_can_be_made_with_are_named(
    write: Any, capsys: Any, values: Any, words: str
) -> None:
    path, given = write("chat.yaml", atom_deployment()), write("values.yaml", values)
    assert main(["plan", "-f", path, "--values", given]) == 2
    assert words in capsys.readouterr().err


def test_both_roles_of_a_divided_model_are_planned_together(write: Any, capsys: Any) -> None:
    roles = {
        "prefill": {"replicas": 3, "engine": {"maxNumSeqs": 16}},
        "traffic": {"promptTokens": 8192, "answerTokens": 64},
    }
    changes = {**QWEN, "accelerator": MI300X, "disaggregation": roles}
    path = write("chat.yaml", atom_deployment(**changes))
    nodes = write("nodes.yaml", gpu_node("a", 8))
    assert main(["plan", "-f", path, "--nodes", nodes]) == 0
    decode, prefill = capsys.readouterr().out.split("\n\n")
    assert decode.startswith("AtomDeployment default/chat\n")
    assert prefill.startswith("AtomDeployment default/chat-prefill\n")
    assert "separate pods pay" in decode
    assert "2 + 3 replicas, 5 amd.com/gpu" in prefill
    few = write("few.yaml", gpu_node("a", 4))
    assert main(["plan", "-f", path, "--nodes", few]) == 1
    assert "4 of 5 replicas, with those beside it, find a place now" in capsys.readouterr().out
    assert kubectl_atom(["plan", "-f", path, "-o", "json"]) == 0
    documents = json.loads(capsys.readouterr().out)
    assert [item["name"] for item in documents] == ["chat", "chat-prefill"]
    assert "separate pods pay" in documents[0]["disaggregation"]
