"""What the operator plans for a text encoder is what the engine then holds, to the byte.

Of every family, with and without a head of labels, in drawn sizes: weights, tables, cache and
blocks. The memory of a step is a bound, so its tensors are counted while the largest steps run.
"""

from __future__ import annotations

import json
import random
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from atom.model_engine.model_runner import ModelRunner
from atom.model_engine.runner.kv_cache import run_limits
from atom.model_engine.runner.warm_up import prompt_batch
from atom.sizing import activation_bytes
from tests.contract.test_planned_memory import OPTIONS, Measured, facts_of, planned
from tests.support.models.encoder_checkpoints import FAMILIES, make_encoder, make_sentence_encoder

LONGEST = int(OPTIONS["max_model_len"])


def drawn_encoder(
    folder: Path, family: str, pooling: str, draw: random.Random, *, widening: int = 0
) -> Path:
    """Write an encoder of drawn sizes; pooling: the tokens that are pooled, or head; widening: of
    the MLP, drawn for 0."""
    heads, size = draw.choice((1, 3, 5, 6)), draw.choice((8, 10, 16))
    sizes: dict[str, Any] = {
        "num_attention_heads": heads,
        "hidden_size": heads * size,
        "num_hidden_layers": draw.randint(1, 5),
        "intermediate_size": draw.choice((24, 52, 300)),
        "max_position_embeddings": LONGEST + 2,
    }
    if widening:
        sizes["intermediate_size"] = widening * heads * size
    if family == "modernbert":
        sizes["global_attn_every_n_layers"] = draw.randint(1, 4)
        names = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")
        sizes |= {name: draw.random() < 0.5 for name in names}
    else:
        sizes["type_vocab_size"] = draw.choice((1, 2, 3))
    if pooling == "head":
        return make_encoder(folder, family, head=True, **sizes)
    return make_sentence_encoder(folder, family, pooling_mode=pooling, **sizes)


@pytest.mark.pairs
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pooling", ["mean_tokens", "cls_token", "head"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("cache", ["auto", "bf16", "fp8"])
def test_of_every_text_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, pooling: str, dtype: str,
    cache: str,
) -> None:  # fmt: skip
    draw = random.Random(f"{family}, {pooling}, {dtype}, {cache}")
    folder = drawn_encoder(tmp_path, family, pooling, draw)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "dtype": dtype}))
    options = {"kv_cache_dtype": cache, "block_size": draw.choice((16, 32, 64))}
    found, plan = Measured(folder, monkeypatch, **options), planned(folder, **options)
    report = found.report
    assert found.weights == report.weights_bytes == plan.weights_bytes
    assert report.limited_by == plan.limited_by
    assert report.num_blocks == plan.num_blocks
    assert found.cache == report.kv_cache_bytes == plan.device.kv_cache_bytes
    assert report.kv_bytes_per_token == plan.kv_bytes_per_token
    assert report.kv_tokens == plan.kv_tokens
    assert report.peak_bytes - report.weights_bytes == plan.device.reserve_bytes


class _LiveTensors(TorchDispatchMode):
    """Count the bytes of the tensors that operations make while it is on, at their most."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[int, weakref.ref[Any]] = {}
        self.peak_bytes = 0

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = op(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor) and not _is_view(op):
                storage = tensor.untyped_storage()
                self._held[storage.data_ptr()] = weakref.ref(storage)
        storages = [(at, held()) for at, held in self._held.items()]
        self._held = {at: self._held[at] for at, storage in storages if storage is not None}
        live = sum(storage.nbytes() for _, storage in storages if storage is not None)
        self.peak_bytes = max(self.peak_bytes, live)
        return found


def _is_view(op: Any) -> bool:
    return any(each.alias_info is not None for each in op._schema.returns)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pooling", ["mean_tokens", "head"])
def test_a_steps_tensors_are_within_the_planned_activations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, pooling: str
) -> None:
    draw = random.Random(f"steps of {family}, {pooling}")
    # As published: the reference's attention makes more tensors than a kernel's.
    folder = drawn_encoder(tmp_path, family, pooling, draw, widening=4)
    runners: list[ModelRunner] = []
    initialize: Callable[..., Any] = ModelRunner.initialize

    def kept(runner: ModelRunner, progress: Any) -> Any:
        runners.append(runner)
        return initialize(runner, progress)

    monkeypatch.setattr(ModelRunner, "initialize", kept)
    options = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
    found = Measured(folder, monkeypatch, **options)
    (runner,) = runners
    cache, planned_bytes = runner._caches.shape(found.report.num_blocks), runner._activation_bytes()
    for counts in ([LONGEST] * 8, [32] * 64):
        with torch.inference_mode(), _LiveTensors() as live:
            runner.steps.collect(runner.steps.submit(prompt_batch(counts, cache)))
        numbers = 16 * sum(counts)  # ids, positions and slots, which no plan counts
        assert planned_bytes / 4 < live.peak_bytes <= planned_bytes + numbers
    larger = replace(facts_of(folder), vocab_size=250_000)  # whose logits no step has
    limits = run_limits(runner._config)
    assert activation_bytes(larger, limits, 4) == planned_bytes
