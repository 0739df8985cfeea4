"""The guide to speculation says what is so."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest

from atom.entrypoints.cli import build_parser
from atom.entrypoints.flags.engine_args import options_from_args
from atom.entrypoints.metrics.collector import _counters
from atom.speculative_config import SpeculativeConfig
from atom_operator.children.engine_container import engine_args
from tests.support.engine_core.front_half import rank_stats
from tests.support.operator.builders_operator import plan
from tests.support.server.server_process import START_SECONDS, command_environment
from tools.demo.steps import SPECULATION, speculation_patch

REPOSITORY = Path(__file__).parents[3]
GUIDE = (REPOSITORY / "docs/guides/speculation.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


@pytest.mark.parametrize("line", blocks("bash")[0].splitlines())
def test_both_launch_lines_ask_for_the_defaults(line: str) -> None:
    words = shlex.split(line)
    assert words[0] == "atom"
    options = options_from_args(build_parser().parse_args(words[1:]))
    assert options.speculative == SpeculativeConfig()


def test_the_deployments_field_is_rendered_as_the_flags() -> None:
    lookups, suffix, layers, model = (yaml.safe_load(block)["spec"] for block in blocks("yaml"))
    args = engine_args(plan(**lookups))
    assert args[args.index("--method") : args.index("--method") + 4] == [
        *("--method", "ngram", "--num-speculative-tokens", "5")
    ]
    static = {"speculative": {**lookups["engine"]["speculative"], "adaptive": False}}
    words = ["serve", *engine_args(plan(engine=static))]
    asked = options_from_args(build_parser().parse_args(words)).speculative
    assert asked == SpeculativeConfig(adaptive=False)
    args = engine_args(plan(**suffix))
    assert args[args.index("--method") : args.index("--method") + 4] == [
        *("--method", "suffix", "--num-speculative-tokens", "8")
    ]
    card = {"type": "amd", "product": "MI300X"}
    large = {"source": "hf://Qwen/Qwen3-32B"}
    args = engine_args(plan(model=large, accelerator=card, **model))
    assert args[args.index("--method") : args.index("--method") + 6] == [
        *("--method", "draft_model", "--num-speculative-tokens", "5"),
        *("--draft-model", "Qwen/Qwen3-0.6B"),
    ]
    source = {"source": "hf://meta-llama/Llama-3.1-8B-Instruct"}
    args = engine_args(plan(model=source, accelerator=card, **layers))
    assert args[args.index("--method") : args.index("--method") + 6] == [
        *("--method", "eagle3", "--num-speculative-tokens", "3", "--draft-model", "acme/eagle3")
    ]


def test_the_demo_is_patched_as_the_demo_says() -> None:
    assert blocks("bash")[4].splitlines()[0] == speculation_patch()
    args = engine_args(plan(**SPECULATION))
    assert args[args.index("--method") + 1] == "ngram"


def test_the_line_of_suffix_decoding_asks_for_its_defaults() -> None:
    words = shlex.split(blocks("bash")[1])
    asked = options_from_args(build_parser().parse_args(words[1:])).speculative
    assert asked == SpeculativeConfig(method="suffix")


def test_lines_with_layers_ask_for_them() -> None:
    mtp, eagle3 = (
        options_from_args(build_parser().parse_args(shlex.split(line)[1:])).speculative
        for line in blocks("bash")[2].splitlines()
    )
    assert mtp == SpeculativeConfig(method="mtp", num_tokens=2)
    assert eagle3 == SpeculativeConfig(method="eagle3", num_tokens=3, draft_model="/models/eagle3")


def test_the_line_of_a_smaller_model_asks_for_it() -> None:
    words = shlex.split(blocks("bash")[3])
    asked = options_from_args(build_parser().parse_args(words[1:])).speculative
    assert asked == SpeculativeConfig(method="draft_model", draft_model="Qwen/Qwen3-0.6B")


def test_the_metrics_are_those_that_are_counted() -> None:
    stats = rank_stats(0, 1, drafts_total=1, accepted_at_totals=(1,)).stats  # type: ignore[arg-type]

    class Page:
        def collect(self) -> object:
            return _counters(stats, "m")

    page = generate_latest(Page()).decode()  # type: ignore[arg-type]
    named = set(re.findall(r"`(atom:spec_decode_\w+)`", GUIDE))
    assert named == set(re.findall(r"^(atom:spec_decode_\w+_total)", page, re.MULTILINE))


def test_the_example_gives_the_same_answer_twice() -> None:
    (example,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.preloaded.script", example],
        cwd=REPOSITORY,
        env=command_environment(),
        capture_output=True,
        text=True,
        timeout=2 * START_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr
