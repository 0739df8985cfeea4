"""Every flag of `vllm bench serve` is one of `atom bench serve`, or has a row with its effect."""

from __future__ import annotations

import argparse
import re

import pytest

from atom.entrypoints.bench.flags_of_vllm import (
    OTHER_DATASETS,
    VLLM_BENCH_FLAGS,
    VLLM_BENCH_ROW_OF,
)
from atom.entrypoints.bench.load import loads_of
from atom.entrypoints.bench.request_flags import endpoint_of, fields_of, names_of
from atom.entrypoints.cli import build_parser
from atom.entrypoints.flags.flag_row import ANY_VALUE, FlagRow, FlagVerdict
from atom.errors import ConfigError
from tests.support.peers import flags_of
from tests.tools.installation.test_typing_slips import LEAVES

_, PARSER = LEAVES["atom bench serve"]
OURS = PARSER._option_string_actions


def parse(line: str) -> argparse.Namespace:
    return build_parser().parse_args(["bench", "serve", *line.split()])


def refusal(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        parse(line)
    return capsys.readouterr().err


def test_every_flag_has_an_effect_or_a_row() -> None:
    flags = flags_of("vllm_bench")
    assert len(flags) > 90
    assert not [flag for flag in flags if flag not in OURS and flag not in VLLM_BENCH_ROW_OF]


@pytest.mark.parametrize("row", VLLM_BENCH_FLAGS, ids=lambda row: row.flags[0])
def test_a_row_is_true(row: FlagRow, capsys: pytest.CaptureFixture[str]) -> None:
    assert not [flag for flag in row.flags if flag in OURS]
    named = re.findall(r"--[a-z][a-z-]+", row.note)
    assert not [flag for flag in named if flag not in OURS]
    for flag in row.flags:
        if row.verdict is FlagVerdict.REFUSED:
            for line in (flag, f"{flag} 1", f"{flag}=1"):
                assert f"  {flag}: {row.note}" in refusal(line, capsys)
        elif row.verdict is FlagVerdict.UNNEEDED:
            line = f"{flag} anything" if ANY_VALUE in row.values else flag
            found = parse(f"{line} --num-prompts 3")
            assert [(each.flag, each.note) for each in found.unneeded_flags] == [(flag, row.note)]
            assert found.num_prompts == 3
        else:
            assert parse(f"{flag} openai-chat").backend == "openai-chat"


@pytest.mark.parametrize("name", OTHER_DATASETS)
def test_another_dataset_is_refused_with_one_that_is_read(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert OTHER_DATASETS[name] in refusal(f"--dataset-name {name}", capsys)


@pytest.mark.parametrize(
    "line",
    [
        "--backend vllm --model m --endpoint /v1/completions --dataset-name sharegpt "
        "--dataset-path d.json --num-prompts 100 --ready-check-timeout-sec 600",
        "--backend openai-chat --endpoint /v1/chat/completions --model m --tokenizer t "
        "--tokenizer-mode hf --dataset-name custom --dataset-path p --custom-output-len 32 "
        "--skip-chat-template --disable-shuffle --no-oversample --num-warmups 0 "
        "--request-rate inf --max-concurrency 1 --save-result --save-detailed",
        "--backend openai --served-model-name s --ignore-eos --temperature 0 --trust-remote-code "
        "--label l --metadata run_name=a x=1 --result-filename b.json",
        "--temperature 0.6 --top-p 0.95 --top-k 20 --min-p 0 --repetition-penalty 1.0",
        "--ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 9 --append-result",
    ],
)
def test_lines_of_published_scripts_are_taken(line: str) -> None:
    parse(line)


def test_the_backend_says_where_requests_go() -> None:
    assert endpoint_of(parse("")) == "/v1/completions"
    assert endpoint_of(parse("--backend vllm")) == "/v1/completions"
    assert endpoint_of(parse("--backend openai-chat")) == "/v1/chat/completions"
    assert endpoint_of(parse("--endpoint /v1/chat/completions")) == "/v1/chat/completions"
    with pytest.raises(ConfigError, match="leave one of them out"):
        endpoint_of(parse("--backend openai --endpoint /v1/chat/completions"))


def test_sampling_goes_into_the_body_and_extra_fields_win() -> None:
    args = parse('--temperature 0 --top-p 0.5 --logprobs 2 --extra-body {"top_p":0.9}')
    plain, chat = "/v1/completions", "/v1/chat/completions"
    assert fields_of(args, plain) == {"temperature": 0.0, "top_p": 0.9, "logprobs": 2}
    assert fields_of(args, chat)["top_logprobs"] == 2
    assert fields_of(parse(""), plain) == {}
    variables = parse('--chat-template-kwargs {"enable_thinking":false}')
    assert fields_of(variables, chat) == {"chat_template_kwargs": {"enable_thinking": False}}
    with pytest.raises(ConfigError, match="--backend openai-chat"):
        fields_of(variables, plain)


def test_adapters_are_asked_in_turn_or_at_random() -> None:
    turns = names_of(parse("--lora-modules a b c --lora-assignment round-robin"), "m")
    assert [turns(place) for place in range(4)] == ["a", "b", "c", "a"]
    drawn = names_of(parse("--lora-modules a b c --seed 3"), "m")
    assert {drawn(place) for place in range(50)} == {"a", "b", "c"}
    assert [drawn(place) for place in range(9)] == [drawn(place) for place in range(9)]
    assert names_of(parse(""), "m")(7) == "m"


@pytest.mark.parametrize("strategy", ["linear", "exponential"])
@pytest.mark.parametrize("burstiness", [0.5, 1.0, 20.0])
def test_a_ramp_begins_slowly_and_ends_fast(strategy: str, burstiness: float) -> None:
    line = f"--ramp-up-strategy {strategy} --ramp-up-start-rps 2 --ramp-up-end-rps 50"
    (load,) = loads_of(parse(line))
    times = load.arrivals(4001, burstiness, 1)
    assert times == sorted(times)
    assert times[0] == 0.0
    first, last = times[80] / 80, (times[4000] - times[3800]) / 200
    assert 1 / first == pytest.approx(2, rel=0.6)
    assert 1 / last == pytest.approx(50, rel=0.3)


@pytest.mark.parametrize(
    "line",
    [
        "--ramp-up-strategy linear",
        "--ramp-up-start-rps 1",
        "--ramp-up-strategy linear --ramp-up-start-rps 9 --ramp-up-end-rps 1",
        "--ramp-up-strategy exponential --ramp-up-start-rps 0 --ramp-up-end-rps 1",
        "--ramp-up-strategy linear --ramp-up-start-rps 0 --ramp-up-end-rps 0",
        "--ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 2 --request-rate 3",
        "--ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 2 --max-concurrency 1,2",
    ],
)
def test_a_ramp_that_is_none_is_refused(line: str) -> None:
    with pytest.raises(ConfigError, match="--ramp-up"):
        loads_of(parse(line))
