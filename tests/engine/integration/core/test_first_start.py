"""A first start on a card meets the kernels of all its steps before it needs one.

The card is only named: launches are met and not carried out, other operations are the CPU's.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter launches what is only compiled here", allow_module_level=True)

import torch
import triton

from atom.model_engine.model_runner import ModelRunner
from atom.model_engine.runner.cuda_graphs.decode_graphs import DecodeGraphs
from atom.model_engine.runner.step_graphs import StepGraphs
from atom.model_engine.runner.warm_up import describe_start
from atom.model_ops.backends import triton_ops
from atom.model_ops.backends.triton_ops.compile.compiler_process import Specialisation
from atom.models.decoder import layer_kinds
from atom.speculative_config import SpeculativeConfig
from atom.utils.device import Device
from benchmarks.workloads.shapes import SHAPES, write_shape
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.kernels.compile_only import compile_only

OPTIONS: dict[str, Any] = {
    "load_dummy": True,
    "dtype": "bfloat16",
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "max_model_len": 256,
    "num_kv_blocks": 64,
    "backend": "triton",
}


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Counter[str]]:
    """Kernel → forms that were handed to the compiler, which makes none here."""
    forms: Counter[str] = Counter()
    monkeypatch.setenv("ATOM_COMPILE_AHEAD", "threads")
    monkeypatch.setattr(Specialisation, "compile", lambda self: forms.update([self.kernel]))
    monkeypatch.setattr(triton_ops, "unusable", lambda: ())
    monkeypatch.setattr("atom.model_ops.backends._PREFERENCES", {"cpu": ("triton", "torch_ref")})
    with compile_only(), triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path / "cache")
        yield forms


def first_start(shape: str, folder: Path, **options: Any) -> ModelRunner:
    """An engine whose runner takes its device for a card when it compiles ahead."""
    driver = CoreDriver(str(write_shape(shape, folder)), **{**OPTIONS, **options})
    runner: ModelRunner = driver.executor.runner
    runner._build()  # as a start has it then: weights are not read yet
    steps = runner._step_runner()
    runner._step_runner = lambda: steps  # on the CPU, whose memory is not pinned
    runner._device = Device("cuda", "a card", torch.device("cpu"))
    runner._resolved = replace(runner._resolved, uncapturable=())
    runner._graphs = StepGraphs(runner._config, runner._resolved, is_gpu=True)
    return runner


@torch.inference_mode()
def compile_ahead(runner: ModelRunner) -> list[tuple[str, float]]:
    told: list[tuple[str, float]] = []
    finish = runner._compile_ahead(lambda phase, share: told.append((phase, share)))
    if finish is not None:
        finish()
    return told


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", ["tiny", "tiny-moe", "tiny-latent"])
def test_every_kind_of_step_is_met_before_one_is_needed(
    shape: str, tmp_path: Path, met: Counter[str]
) -> None:
    runner = first_start(shape, tmp_path)
    told = compile_ahead(runner)
    assert {phase for phase, _ in told} == {"compiling kernels"}
    assert {"_prepare_kernel", "_commit_kernel", "_receive_kernel"} <= set(met), "graphs' kernels"
    assert {"_score_kernel", "_pick_kernel", "_token_mask_kernel", "_least_kernel"} <= set(met)
    attention = {"_mla_decode_kernel", "_mla_prefill_kernel"}
    assert (
        attention if shape == "tiny-latent" else {"_decode_append_kernel", "_prefill_kernel"}
    ) <= set(met)
    assert ("w13_kernel" in met) == (shape != "tiny")
    assert met.total() <= 60, "what depends on a step's rows is no constant of a kernel"
    assert compile_ahead(runner) == [], "its cache is there"


def test_a_layer_of_each_kind_meets_what_all_of_them_would(
    tmp_path: Path, met: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHAPES["tiny-latent"], "num_hidden_layers", 6)  # one of them has no experts
    runner = first_start("tiny-latent", tmp_path)
    compile_ahead(runner)
    few = met.copy()
    met.clear()
    triton.knobs.cache.dir = str(tmp_path / "emptied")
    monkeypatch.setattr(layer_kinds, "kept_layers", lambda kinds: range(len(kinds)))
    compile_ahead(runner)
    assert few == met


def test_layers_stand_behind_others_as_in_the_model() -> None:
    kept = layer_kinds.kept_layers
    assert kept("a") == [0]
    assert kept("a" * 28) == [0, 1, 27]
    assert kept("abbbbb") == [0, 1, 2, 5]
    assert kept("aaab" * 7 + "aa") == [0, 1, 3, 4, 29], "windows between layers that see all"
    assert kept("abcabd") == [0, 1, 2, 3, 4, 5], "what stands before d is as there"


def test_a_start_that_needs_other_kernels_is_another(tmp_path: Path, met: Counter[str]) -> None:
    runner = first_start("tiny", tmp_path)
    config = runner._config
    longer = replace(config, model=replace(config.model, max_model_len=512))
    other = replace(config, scheduler=replace(config.scheduler, max_num_seqs=4))
    assert len({describe_start(c) for c in (config, longer, other)}) == 3
    assert describe_start(config) == describe_start(replace(config, seed=5))


def test_a_variable_leaves_the_warmup_compile_out(
    tmp_path: Path, met: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOM_COMPILE_AHEAD", "0")
    assert compile_ahead(first_start("tiny", tmp_path)) == []
    assert not met


def test_a_warmup_compile_that_fails_is_told_of_and_ends_no_start(
    tmp_path: Path,
    met: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    runner = first_start("tiny", tmp_path)

    def fail(_: DecodeGraphs) -> None:
        raise RuntimeError("no zeros here")

    monkeypatch.setattr(DecodeGraphs, "compile_ahead", fail)
    assert compile_ahead(runner) == [("compiling kernels", 0.0)]
    assert "compiled as steps need them" in caplog.text
    assert "no zeros here" in caplog.text


def test_a_start_with_drafts_compiles_as_it_goes(tmp_path: Path, met: Counter[str]) -> None:
    runner = first_start("tiny", tmp_path, speculative=SpeculativeConfig(num_tokens=2))
    assert compile_ahead(runner) == []
    assert not met
