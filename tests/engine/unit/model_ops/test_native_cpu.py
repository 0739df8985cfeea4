"""The CPU's compiled kernels: built once, refused where they cannot be trusted, and never led
outside their tensors by a wrong index."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from atom.errors import ConfigError
from atom.model_ops.activations import Activation
from atom.model_ops.backends import resolve_ops
from atom.model_ops.backends.native_cpu import attention, dense
from atom.model_ops.backends.native_cpu.library import KERNELS, why_not
from atom.model_ops.backends.op_case import LayerShapes
from atom.model_ops.backends.torch_ref.attention import paged_attention as reference
from atom.model_ops.quantised.dequantise import prepare_for_cpu
from atom.model_ops.values import AttentionShape, LayerCache, LinearWeight, NormWeight, Rotary
from atom.utils.c_library import BuildError, CSources, Toolchain, built_library, find_toolchain
from atom.utils.device import usable_cpus
from tests.engine.ops.inputs import BFLOAT16, FLOAT32, PagedCase, assert_rows_agree, paged_case

CPU = torch.device("cpu")
SHAPE = AttentionShape(num_heads=4, num_kv_heads=2, head_dim=32, scale=32**-0.5)


@pytest.fixture
def toolchain() -> Toolchain:
    try:
        return find_toolchain()
    except BuildError as error:
        pytest.skip(str(error))


@pytest.fixture
def kernels(toolchain: Toolchain) -> None:
    """They load wherever there is a compiler."""
    assert why_not() is None


@pytest.fixture
def sources(tmp_path: Path) -> CSources:
    """A library of one function: what is known of the cache does not depend on what is in it."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "one.c").write_text("int one(void) { return 1; }\n")
    return replace(KERNELS, folder=folder)


# ---- building --------------------------------------------------------------------------------


def test_sources_are_compiled_once(
    sources: CSources, toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOM_CACHE_DIR", str(tmp_path))
    with built_library(sources, toolchain) as path:
        assert path.is_relative_to(tmp_path)
    made = path.stat().st_mtime_ns
    with built_library(sources, toolchain) as again:
        assert again == path
    assert path.stat().st_mtime_ns == made
    assert list(path.parent.iterdir()) == [path], "nothing is left behind"


def test_a_cache_that_others_may_write_is_not_loaded_from(
    sources: CSources, toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOM_CACHE_DIR", str(tmp_path))
    with built_library(sources, toolchain) as path:
        path.parent.chmod(0o777)
    with built_library(sources, toolchain) as elsewhere:
        assert not elsewhere.is_relative_to(tmp_path)
        assert stat.S_IMODE(elsewhere.parent.stat().st_mode) == 0o700
    assert not elsewhere.exists(), "it served this process alone"


def test_a_compiler_that_fails_is_quoted(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOM_CACHE_DIR", str(tmp_path))
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'no such instruction' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(BuildError, match="no such instruction"):
        with built_library(KERNELS, replace(toolchain, compiler=str(broken))):
            pass


def test_without_a_compiler_pytorch_computes_and_the_log_says_so() -> None:
    script = (
        "from atom.model_ops.backends import resolve_ops\n"
        "import torch\n"
        "from atom.model_ops.backends.op_case import OpCase\n"
        "case = OpCase(dtype=torch.float32, kv_dtype=torch.float32)\n"
        "print(sorted(set(resolve_ops('cpu', case).chosen.values())))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.preloaded.script", script],
        env={**os.environ, "CC": "no-such-compiler", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "['torch_cpu', 'torch_ref']"
    assert "no C compiler (no-such-compiler); install gcc" in ran.stderr


def test_other_dtypes_are_left_to_pytorch_which_the_log_says(
    kernels: None, caplog: pytest.LogCaptureFixture
) -> None:
    assert resolve_ops("cpu", FLOAT32).chosen["linear"] == "native_cpu"
    caplog.set_level("INFO", logger="atom.model_ops.backends")
    other = resolve_ops("cpu", replace(FLOAT32, dtype=torch.bfloat16, kv_dtype=torch.bfloat16))
    assert "native_cpu" not in other.chosen.values()
    assert "made for float32, not bfloat16" in caplog.text
    caplog.clear()
    # A cache of another type is the affair of what stores and reads it.
    mixed = resolve_ops("cpu", replace(FLOAT32, kv_dtype=torch.bfloat16)).chosen
    assert (mixed["paged_attention"], mixed["linear"]) == ("torch_cpu", "native_cpu")
    (line,) = [message for message in caplog.messages if "native_cpu" in message]
    assert "made for float32, not bfloat16 and float32" in line
    assert "paged_attention" in line


def test_capped_scores_are_left_to_the_reference_alone(kernels: None) -> None:
    capped = replace(FLOAT32, layers=LayerShapes(attention=(replace(SHAPE, softcap=50.0),)))
    chosen = resolve_ops("cpu", capped).chosen
    assert (chosen["paged_attention"], chosen["linear"]) == ("torch_ref", "native_cpu")


def test_the_remedy_of_a_refused_choice_works(kernels: None) -> None:
    capped = replace(FLOAT32, layers=LayerShapes(attention=(replace(SHAPE, softcap=50.0),)))
    with pytest.raises(ConfigError, match="use --op-backend paged_attention=torch_ref"):
        resolve_ops("cpu", capped, overrides={"paged_attention": "native_cpu"})
    chosen = resolve_ops("cpu", capped, overrides={"paged_attention": "torch_ref"}).chosen
    assert chosen["paged_attention"] == "torch_ref"


def test_a_backend_by_name_leaves_the_rest_to_those_after_it(kernels: None) -> None:
    chosen = resolve_ops("cpu", FLOAT32, "torch_cpu").chosen
    assert (chosen["paged_attention"], chosen["linear"]) == ("torch_cpu", "torch_ref")
    chosen = resolve_ops("cpu", FLOAT32, "native_cpu", {"linear": "torch_ref"}).chosen
    assert (chosen["sample"], chosen["linear"]) == ("native_cpu", "torch_ref")
    assert chosen["filter_logits"] == "torch_cpu"


def test_a_backend_by_name_that_cannot_compute_an_operation_is_refused(kernels: None) -> None:
    with pytest.raises(ConfigError, match="native_cpu: made for float32, not bfloat16"):
        resolve_ops("cpu", BFLOAT16, overrides={"linear": "native_cpu"})
    with pytest.raises(ConfigError, match="torch_cpu: does not provide linear"):
        resolve_ops("cpu", FLOAT32, overrides={"linear": "torch_cpu"})


# ---- results ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 12, 13, 256, 257])
@pytest.mark.parametrize(("inputs", "outputs"), [(256, 512), (300, 77), (513, 64), (7, 130)])
def test_products_of_any_size(kernels: None, rows: int, inputs: int, outputs: int) -> None:
    x, bias = torch.randn(rows, inputs), torch.randn(outputs)
    w = prepare_for_cpu(LinearWeight(torch.randn(outputs, inputs), bias))
    expected = F.linear(x.double(), w.data.double(), bias.double())
    assert_rows_agree(dense.linear(x, w), expected, torch.float32)


def test_long_prompts_between_short_rows(kernels: None) -> None:
    rows = [(700, 1), (3, 1), (40, 12), (600, 300), (20, 20), (257, 257)]
    case = paged_case(rows, device=CPU, dtype=torch.float32)
    out = attend(case)
    assert_rows_agree(out, reference(*case.doubled), torch.float32)


@pytest.mark.parametrize("head_dim", [8, 20, 40, 80])
def test_head_sizes_that_are_no_whole_vectors(kernels: None, head_dim: int) -> None:
    case = paged_case([(70, 1), (30, 9)], device=CPU, dtype=torch.float32, head_dim=head_dim)
    out = attend(case)
    assert_rows_agree(out, reference(*case.doubled), torch.float32)


def attend(case: PagedCase) -> torch.Tensor:
    return attention.paged_attention(*case.arguments)


# ---- threads ---------------------------------------------------------------------------------


@pytest.fixture
def more_threads_than_cores() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2 * usable_cpus() + 1)
    yield
    torch.set_num_threads(before)


def doubled(x: torch.Tensor) -> torch.Tensor:
    """In hundreds of short loops: an identity times two, whose sums have one term."""
    w = prepare_for_cpu(LinearWeight(2 * torch.eye(x.shape[1])))
    for _ in range(300):
        assert torch.equal(dense.linear(x, w), 2 * x)
    return 2 * x


def test_every_piece_is_computed_by_however_many_threads(
    kernels: None, more_threads_than_cores: None
) -> None:
    doubled(torch.randn(40, 400))


def test_callers_at_the_same_time_do_not_disturb_each_other(
    kernels: None, more_threads_than_cores: None
) -> None:
    inputs = [torch.randn(rows, 400) for rows in (20, 30, 40, 50)]
    with ThreadPoolExecutor(len(inputs)) as callers:
        assert len(list(callers.map(doubled, inputs))) == len(inputs)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # threads are the point here
def test_a_forked_process_computes_with_threads_of_its_own(
    kernels: None, more_threads_than_cores: None
) -> None:
    x, w = torch.randn(40, 400), prepare_for_cpu(LinearWeight(torch.eye(400)))
    dense.linear(x, w)
    child = os.fork()
    if child == 0:  # torch's own threads do not survive a fork: none of its loops here
        failed = True
        try:
            same = np.array_equal(dense.linear(x, w).numpy(), x.numpy())
            failed = not same or len(list(Path("/proc/self/task").iterdir())) < 2
        finally:
            os._exit(failed)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_signals_are_left_to_the_programs_own_threads(
    kernels: None, more_threads_than_cores: None
) -> None:
    doubled(torch.randn(40, 400))
    tasks = list(Path("/proc/self/task").iterdir())
    ours = [task for task in tasks if (task / "comm").read_text() == "atom-kernels\n"]
    assert len(ours) >= 2 * usable_cpus()
    for task in ours:
        blocked = dict(line.split(":\t") for line in (task / "status").read_text().splitlines())
        assert int(blocked["SigBlk"], 16) & 1 << (signal.SIGINT - 1)


# ---- wrong indices ---------------------------------------------------------------------------


@pytest.mark.parametrize("block", [-1, 10**6])
def test_a_block_outside_the_cache_is_refused(kernels: None, block: int) -> None:
    case = paged_case([(40, 1), (20, 20)], device=CPU, dtype=torch.float32)
    case.step.block_tables[0, 2] = block
    with pytest.raises(IndexError, match="block outside"):
        attend(case)


@pytest.mark.parametrize(("row", "context"), [(0, 10**6), (1, 19)])
def test_a_context_that_fits_no_table_or_no_queries_is_refused(
    kernels: None, row: int, context: int
) -> None:
    case = paged_case([(40, 1), (20, 20)], device=CPU, dtype=torch.float32)
    case.step.context_lens[row] = context
    with pytest.raises(IndexError, match="lengths"):
        attend(case)


@pytest.mark.parametrize(
    ("position", "slot", "what"),
    [(64, 0, "position"), (-1, 0, "position"), (0, 160, "slot"), (0, -1, "slot")],
)
def test_a_position_or_slot_out_of_range_writes_nothing(
    kernels: None, position: int, slot: int, what: str
) -> None:
    caches = torch.zeros(2, 10, 16, 2, 32)
    with pytest.raises(IndexError, match=what):
        attention.qk_norm_rope_store(
            torch.randn(2, 8 * 32), SHAPE, Rotary(torch.randn(64, 32), torch.tensor([3, position])),
            LayerCache(*caches), torch.tensor([5, slot]),
        )  # fmt: skip
    assert not caches.any()


def test_tensors_of_another_layout_are_refused(kernels: None) -> None:
    with pytest.raises(TypeError, match="contiguous float32"):
        dense.act_and_mul(torch.randn(8, 4).t(), Activation.SILU)
    with pytest.raises(ValueError, match="norm of 3"):
        dense.rms_norm(torch.randn(2, 4), NormWeight(torch.randn(3), 1e-6))
