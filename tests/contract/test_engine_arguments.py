"""What the operator renders is what the engine's command line takes, with the same meaning."""

from __future__ import annotations

from pathlib import Path

import yaml

from atom.config import build_config
from atom.entrypoints.cli import build_parser
from atom.entrypoints.flags.engine_args import options_from_args
from atom.sizing.kv_layout import kv_bytes_per_token
from atom_operator import constants
from atom_operator.children.engine_container import engine_args
from tests.support.engine_core.option_values import values_of
from tests.support.operator.builders_operator import plan as make_plan

ROOT = Path(__file__).resolve().parents[2]
ENGINE = {
    "maxModelLen": 1024,
    "maxNumSeqs": 48,
    "maxNumBatchedTokens": 4096,
    "blockSize": 32,
    "gpuMemoryUtilization": 0.85,
    "kvCacheDtype": "bf16",
    "prefixCaching": False,
    "schedulingPolicy": "prefillFirst",
}


def test_every_rendered_argument_parses_and_means_the_same() -> None:
    plan = make_plan(engine=ENGINE, rollout={"drainSeconds": 77})
    args = build_parser().parse_args(["serve", *engine_args(plan)])
    options = values_of(options_from_args(args))
    assert (options.max_model_len, options.max_num_seqs) == (1024, 48)
    assert (options.max_num_batched_tokens, options.block_size) == (4096, 32)
    assert (options.gpu_memory_utilization, options.kv_cache_dtype) == (0.85, "bf16")
    assert (options.enable_prefix_caching, options.scheduling_policy) == (False, "prefill_first")
    assert args.drain_seconds == 77
    assert args.startup_budget_seconds == plan.rollout.startup_budget_seconds
    assert args.server_port == constants.ENGINE_PORT


def test_copies_of_the_model_are_the_engines_ranks() -> None:
    amd = {"type": "amd", "product": "MI300X"}
    plan = make_plan(accelerator=amd, parallelism={"data": 4})
    args = build_parser().parse_args(["serve", *engine_args(plan)])
    assert options_from_args(args).parallel.data_parallel_size == 4
    one = engine_args(make_plan(accelerator=amd))
    assert "--data-parallel-size" not in one, "an older image may not know it"


def test_planned_bytes_per_token_are_the_engines() -> None:
    example = yaml.safe_load((ROOT / "examples" / "atom-tiny.yaml").read_text())
    plan = make_plan(**{key: example["spec"][key] for key in ("model", "engine", "accelerator")})
    folder = ROOT / "examples" / "models" / "atom-tiny"
    args = build_parser().parse_args(["serve", *engine_args(plan), "--model", str(folder)])
    config = build_config(options_from_args(args))
    assert plan.model.facts == config.model.facts, "the catalogue has the demo model's real shape"
    assert plan.capacity.capacity is not None
    # float32 on the CPU, for the plan as for the engine
    assert plan.capacity.capacity.kv_bytes_per_token == kv_bytes_per_token(config.model.facts, 4)
