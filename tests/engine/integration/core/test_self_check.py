"""A start holds its kernels against the reference: a wrong one is found, named and avoidable."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
import torch

from atom.errors import ConfigError
from atom.model_engine.runner import self_check
from atom.model_ops.backends import load_backend
from atom.model_ops.backends.op_names import FUSED_OPS
from atom.model_ops.self_check.op_results import READERS
from tests.engine.integration.models.test_config_fields import FAMILIES
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.kernels.broken_kernels import break_kernel
from tests.support.models.tiny_model import Architecture, make_tiny_checkpoint
from tests.support.ranks.rank_group import RankGroup

LENGTHS = {"max_model_len": 96, "max_num_seqs": 3, "max_num_batched_tokens": 48}
# A model whose steps call each operation of the CPU's backends.
MODEL_OF: dict[str, Architecture] = {
    **dict.fromkeys(
        ("linear", "norm", "norm_linear", "norm_gated_linear", "qk_norm_rope_store",
         "paged_attention", "sample", "filter_logits"), "qwen3"
    ),
    **dict.fromkeys(("route", "experts"), "qwen3_moe"),
    **dict.fromkeys(("act_and_mul", "rms_norm", "gated_delta_rule", "short_convolution"),
                    "qwen3_next"),
    **dict.fromkeys(("mla_rope_store", "mla_attention"), "deepseek3"),
    "state_space_dual": "nemotron_h",
}  # fmt: skip
# Of steps with drafts alone, which need an engine of their own.
DRAFTING = {"draft_ngrams"}
SOUND: tuple[Architecture, ...] = (
    "llama", "gemma2", "gemma4", "gpt_oss", "llama4", "deepseek32", "deepseek4", "kimi_linear",
    "granite_hybrid", "lfm2_moe", "minimax_m2", "mimo_v2", "hunyuan_moe", "olmo3",
)  # fmt: skip


@pytest.fixture(autouse=True)
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Records are the test's own, and a busy machine leaves every comparison its time."""
    monkeypatch.setattr(self_check, "cache_folder", lambda kind: tmp_path / "cache" / kind)
    monkeypatch.setattr(self_check, "_SECONDS", 600.0)
    return tmp_path / "cache" / "self_check"


def start(folder: Path, check: str = "on", **options: object) -> CoreDriver:
    return CoreDriver(str(folder), self_check=check, **{"num_kv_blocks": 24, **LENGTHS, **options})


def provider(op: str) -> str:
    """The CPU's first backend that has the operation."""
    names = ("native_cpu", "torch_cpu")
    return next(name for name in names if op in load_backend(name).operations)


def test_every_operation_of_the_cpus_kernels_is_broken_once() -> None:
    own = {op for name in ("native_cpu", "torch_cpu") for op in load_backend(name).operations}
    assert own & READERS.keys() == MODEL_OF.keys() | DRAFTING


@pytest.mark.singles
@pytest.mark.parametrize("op", MODEL_OF)
@pytest.mark.parametrize("number", [0, 1])
def test_a_wrong_kernel_is_named_and_its_remedy_starts(
    op: str, number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, results: Path
) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model", MODEL_OF[op])
    break_kernel(monkeypatch, provider(op), op, number)
    with pytest.raises(ConfigError) as refused:
        start(folder)
    said = str(refused.value)
    named = re.findall(r"(\w+) of backend (\w+) on [^;]*? is off by (\S+), bound (\S+?)[;,]", said)
    assert [each[:2] for each in named] == [(op, provider(op))], said
    assert float(named[0][2]) > float(named[0][3])
    assert not results.exists(), "a start that failed is checked again"
    flags = dict(re.findall(r"--op-backend (\w+)=(\w+)", said))
    assert flags.keys() <= {op, *FUSED_OPS.get(op, ())}
    start(folder, op_backends=flags)


def test_a_check_that_is_off_compares_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, results: Path
) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model")
    break_kernel(monkeypatch, "native_cpu", "norm", 0)
    start(folder, "off")
    start(folder, "auto")  # a processor's kernels are compared on request
    assert not results.exists()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("architecture", SOUND)
def test_right_kernels_of_a_model_start(
    architecture: Architecture, tmp_path: Path, results: Path
) -> None:
    driver = start(make_tiny_checkpoint(tmp_path / "model", architecture))
    (record,) = results.iterdir()
    held = json.loads(record.read_text())["shapes"]
    chosen = driver.report.backends
    assert {op for op in held if chosen.get(op) == "torch_ref"} == set()
    assert "linear" in held
    tokens = driver.generate([[5, 6, 7]], max_tokens=4, ignore_eos=True)
    driver.close()
    plain = start(tmp_path / "model", "off")
    assert tokens == plain.generate([[5, 6, 7]], max_tokens=4, ignore_eos=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_right_kernels_of_a_family_start_on_a_gpu(
    family: str, dtype: str, tmp_path: Path, results: Path
) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model", **FAMILIES[family])
    start(folder, device="auto", dtype=dtype, num_kv_blocks=64).close()
    (record,) = results.iterdir()
    assert "linear" in json.loads(record.read_text())["shapes"]


def test_ranks_compare_their_own_parts(tmp_path: Path, results: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model", "qwen3_moe")
    ranks = RankGroup(2)
    driver = ranks.driver(str(folder), self_check="on", num_kv_blocks=24, **LENGTHS)
    tokens = driver.generate([[5, 6, 7]], max_tokens=4, ignore_eos=True)
    driver.close()
    ranks.close()
    assert tokens == start(folder, "off").generate([[5, 6, 7]], max_tokens=4, ignore_eos=True)
    assert len(list(results.iterdir())) == 1


def test_a_fault_of_one_rank_ends_every_ranks_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model")
    ranks = RankGroup(2)
    break_kernel(monkeypatch, "native_cpu", "norm", 0)  # in this process, the first rank's
    with pytest.raises(ConfigError, match="norm of backend native_cpu"):
        ranks.driver(str(folder), self_check="on", num_kv_blocks=24, **LENGTHS)
    with pytest.raises(AssertionError):  # the other rank has ended with an error, too
        ranks.close()
    ranks.group.close()


@pytest.mark.parametrize("changed", ["driver", "software", "options"])
def test_an_equal_start_is_remembered(
    changed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, results: Path
) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model")
    for _ in range(2):
        start(folder)
    assert len(list(results.iterdir())) == 1
    options: dict[str, object] = {}
    if changed == "driver":
        monkeypatch.setattr(self_check, "driver_version", lambda: "nvidia 999.1")
    elif changed == "software":
        monkeypatch.setattr(self_check, "software_versions", lambda: {"atom": "999.1"})
    else:
        options = {"max_model_len": 80}
    start(folder, **options)
    assert len(list(results.iterdir())) == 2


def test_comparisons_end_with_the_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, results: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    folder = make_tiny_checkpoint(tmp_path / "model")
    monkeypatch.setattr(self_check, "_SECONDS", 0.0)
    with caplog.at_level(logging.WARNING):
        start(folder)
    assert "no time was left" in caplog.text
    assert not results.exists(), "nothing was proven"


def test_the_drivers_version_is_the_kernels(tmp_path: Path) -> None:
    assert self_check.driver_version(tmp_path) == ""
    file = tmp_path / "amdgpu" / "version"
    file.parent.mkdir()
    file.write_text("6.14.5\n")
    assert self_check.driver_version(tmp_path) == "amdgpu 6.14.5"


def test_matrices_are_compared_with_those_of_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A preparation that changes numbers is a fault of the product."""
    folder = make_tiny_checkpoint(tmp_path / "model")
    break_kernel(monkeypatch, "native_cpu", "prepare_linear", 0)
    with pytest.raises(ConfigError, match="linear of backend native_cpu"):
        start(folder)
