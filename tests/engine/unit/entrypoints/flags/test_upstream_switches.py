"""Upstream's environment variables and flags are never ignored in silence."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

import atom
from atom.config import EngineOptions, build_config
from atom.entrypoints.flags.engine_args import add_engine_arguments, options_from_args
from atom.entrypoints.flags.flag_parser import FlagParser
from atom.entrypoints.flags.upstream_switches import HONOURED, INSTEAD, OF_AITER
from tests.support.engine_core.front_half import write_model_folder

# What upstream's guide lists: fourteen, and two that are read elsewhere; then later ones that
# choose kernels.
UPSTREAM = [
    "ATOM_DP_RANK",
    "ATOM_DP_RANK_LOCAL",
    "ATOM_DP_SIZE",
    "ATOM_DP_MASTER_IP",
    "ATOM_DP_MASTER_PORT",
    "ATOM_ENFORCE_EAGER",
    "ATOM_USE_TRITON_GEMM",
    "ATOM_USE_TRITON_MXFP4_BMM",
    "ATOM_ENABLE_QK_NORM_ROPE_CACHE_QUANT_FUSION",
    "ATOM_ENABLE_DS_INPUT_RMSNORM_QUANT_FUSION",
    "ATOM_ENABLE_DS_QKNORM_QUANT_FUSION",
    "ATOM_ENABLE_ALLREDUCE_RMSNORM_FUSION",
    "ATOM_LLAMA_ENABLE_AITER_TRITON_FUSED_RMSNORM_QUANT",
    "ATOM_LLAMA_ENABLE_AITER_TRITON_FUSED_SILU_MUL_QUANT",
    "ATOM_TORCH_PROFILER_DIR",
    "ATOM_PROFILER_MORE",
    "ATOM_USE_TRITON_MLA",
    "ATOM_USE_TRITON_MOE",
    "ATOM_USE_TRITON_ATTN",
    "ATOM_USE_UNIFIED_ATTN",
    "ATOM_FORCE_ATTN_TRITON",
    "ATOM_USE_GLUON_PA_DECODE",
    "ATOM_FP8_BLOCKSCALE_WEIGHT_PRESHUFFLE",
    "ATOM_USE_FP4_NON_SHUFFLE_TRITON_GEMM",
]


def flag_parser() -> FlagParser:
    parser = FlagParser()
    add_engine_arguments(parser)
    return parser


def options(*words: str) -> EngineOptions:
    return options_from_args(flag_parser().parse_args(["--model", "m", *words]))


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_each_of_upstreams_switches_is_honoured_or_has_an_answer() -> None:
    assert sorted(UPSTREAM) == sorted([*HONOURED, *INSTEAD])


@pytest.mark.parametrize(("value", "asked"), [("1", True), ("true", True), ("0", False)])
def test_vllms_switch_asks_for_reproducible_answers(
    value: str, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", value)
    assert options().execution.reproducible is asked
    assert options("--no-reproducible").execution.reproducible is False


@pytest.mark.parametrize("name", sorted(OF_AITER))
def test_a_variable_of_aiters_that_surprises_is_told_of(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, "1")
    options()
    assert warnings_of(caplog) == [f"the variable {name} is set: {OF_AITER[name]}"]
    caplog.clear()
    monkeypatch.setenv(name, "0")
    options()
    assert not warnings_of(caplog)


@pytest.mark.parametrize("name", sorted(INSTEAD))
def test_a_switch_without_effect_is_warned_of_once_with_what_to_use(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, "1")
    options()
    (said,) = warnings_of(caplog)
    assert said == f"the variable {name} has no effect: {INSTEAD[name]}"


def test_other_variables_of_that_name_are_told_of_together(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("ATOM_MLA_PAGE_SIZE", "ATOM_NUMA_BIND"):
        monkeypatch.setenv(name, "1")
    for ours in ("ATOM_CACHE_DIR", "ATOM_API_KEY", "ATOM_OPERATOR_WORKERS", "ATOM_PORT",
                 "ATOM_TINY_SERVICE_HOST", "ATOM_TINY_PORT_8000_TCP_ADDR"):  # fmt: skip
        monkeypatch.setenv(ours, "1")
    options()
    (said,) = warnings_of(caplog)
    assert said.endswith("without effect: ATOM_MLA_PAGE_SIZE, ATOM_NUMA_BIND")


def variables_read() -> set[str]:
    """Return the variables that the engine names in its sources, upstream's aside."""
    sources = [
        path for path in Path(atom.__path__[0]).rglob("*.py") if path.name != "upstream_switches.py"
    ]
    return {
        name
        for path in sources
        for name in re.findall(r'"(ATOM_[A-Z_]*[A-Z])"', path.read_text(encoding="utf-8"))
    }


def test_no_variable_that_the_engine_reads_is_said_to_be_unknown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    names = variables_read()
    assert {"ATOM_HANDOVER_SECRET", "ATOM_HOST_IP"} <= names
    for name in names:
        monkeypatch.setenv(name, "1")
    options()
    assert not [said for said in warnings_of(caplog) if "does not know" in said]


def test_flags_that_the_answers_name_are_flags() -> None:
    flags = {flag for text in INSTEAD.values() for flag in re.findall(r"--[a-z-]+", text)}
    assert flags
    assert flags <= set(flag_parser()._option_string_actions)


@pytest.mark.parametrize(
    ("value", "eager"), [("1", True), ("true", True), ("0", False), ("", False)]
)
def test_eager_steps_can_be_asked_for_by_the_environment(
    value: str, eager: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ATOM_ENFORCE_EAGER", value)
    assert options().execution.enforce_eager is eager
    assert options("--enforce-eager").execution.enforce_eager
    assert not warnings_of(caplog)


def test_the_folder_of_traces_can_be_given_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ATOM_TORCH_PROFILER_DIR", "traces")
    assert options().execution.torch_profiler_dir == "traces"
    assert options("--torch-profiler-dir", "elsewhere").execution.torch_profiler_dir == "elsewhere"
    assert not warnings_of(caplog)


def test_a_delay_that_the_policy_does_not_know_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model_folder(tmp_path)
    build_config(EngineOptions.of(model=str(tmp_path), scheduler_delay_factor=0.5))
    (said,) = warnings_of(caplog)
    assert "--scheduling-policy prefill_first" in said


def test_a_delay_of_the_policy_that_knows_it_is_no_matter(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model_folder(tmp_path)
    policy = "prefill_first"
    for delay, chosen in ((0.5, policy), (0.0, policy), (0.0, "mixed")):
        build_config(
            EngineOptions.of(
                model=str(tmp_path), scheduler_delay_factor=delay, scheduling_policy=chosen
            )
        )
    assert not warnings_of(caplog)
