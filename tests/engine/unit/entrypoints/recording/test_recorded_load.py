"""A recorded load is replayed with its lengths and shared prefixes, and holds no text."""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.entrypoints.bench.traces.block_prompts import BlockPrompts
from atom.entrypoints.bench.traces.timed_trace import TraceUnits, read_timed_trace
from atom.entrypoints.bench.traces.weka_trace import read_weka_trace
from atom.entrypoints.cli import main
from atom.entrypoints.recording.load_recorder import LoadRecorder, open_recorder
from atom.entrypoints.recording.prompt_hashes import BLOCK_TOKENS, prompt_hashes
from atom.entrypoints.recording.record_options import RecordOptions
from atom.errors import ConfigError
from atom.model_engine.request import LoRARequest, Request
from atom.sampling_params import SamplingParams
from tests.support.engine_core.front_half import build_test_config, write_model_folder
from tests.support.server.http_app import AppRig, serve_app

UNITS = TraceUnits(BLOCK_TOKENS, 1.0)
COMPLETIONS = "/v1/completions"


def request(tokens: list[int], **fields: Any) -> Request:
    fields = {"id": 1, "max_total_tokens": 4096, "arrive_time": 0.0, **fields}
    return Request(prompt_token_ids=tokens, params=SamplingParams(), **fields)


def opened(file: Path, most_bytes: int = 2**20) -> LoadRecorder:
    recorder = open_recorder(RecordOptions(file=file, most_bytes=most_bytes))
    assert recorder is not None
    return recorder


def leading(one: Any, other: Any) -> int:
    """Count the entries that are equal before the first that is not."""
    found = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        found += 1
    return found


async def replay(rig: AppRig, trace: Path) -> None:
    """Send a recording as `atom bench serve` does, one request after the other."""
    requests = read_timed_trace(trace, UNITS, None)
    prompts = BlockPrompts(requests, rig.engine.config.model.facts.vocab_size, seed=1)
    for place in sorted(range(len(requests)), key=lambda each: requests[each].departure.at_seconds):
        ask = prompts.ask(place)
        answer = await rig.post(COMPLETIONS, prompt=ask.prompt, max_tokens=ask.output_tokens)
        assert answer.status_code == 200, answer.text


def shape(trace: Path) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the lengths of a recording's requests, and how many blocks each two share."""
    requests = read_timed_trace(trace, UNITS, None)
    lengths = [(each.input_tokens, each.output_tokens) for each in requests]
    shared = [
        leading(one.hash_ids, other.hash_ids)
        for place, one in enumerate(requests)
        for other in requests[:place]
    ]
    return lengths, shared


async def test_a_recorded_load_replays_with_its_lengths_and_shared_prefixes(
    tmp_path: Path,
) -> None:
    config = build_test_config(write_model_folder(tmp_path, context_tokens=512))
    first, again = tmp_path / "first.jsonl", tmp_path / "again.jsonl"
    common = "The same instructions for all of them, which a cache has. "
    texts = [common + "alpha", common + "omega and more", "another beginning" * 3, "short"]
    recorder = opened(first)
    async with serve_app(config, recorder=recorder) as rig:
        for tokens, text in enumerate(texts, 2):
            await rig.post(COMPLETIONS, prompt=text, max_tokens=tokens)
        await rig.post(COMPLETIONS, prompt=texts[0], max_tokens=3, n=2)
        assert (await rig.post(COMPLETIONS, prompt="refused", top_p=7)).status_code == 400
        one, other = [await rig.post("/tokenize", prompt=text) for text in texts[:2]]
        recorder.close()
    assert recorder.num_recorded == len(texts) + 2
    lengths, shared = shape(first)
    assert [output for _, output in lengths] == [2, 3, 4, 5, 3, 3]
    tokens = leading(one.json()["tokens"], other.json()["tokens"])
    assert shared[0] == tokens // BLOCK_TOKENS > 0
    assert not any(word in first.read_text() for word in ("alpha", "instructions", "prompt"))

    recorder = opened(again)
    async with serve_app(config, recorder=recorder) as rig:
        await replay(rig, first)
        recorder.close()
    assert shape(again) == (lengths, shared)


async def test_an_answer_that_was_left_is_recorded_as_far_as_it_came(tmp_path: Path) -> None:
    config = build_test_config(write_model_folder(tmp_path, context_tokens=512))
    recorder = opened(tmp_path / "load.jsonl")
    async with serve_app(config, recorder=recorder, request_timeout_seconds=0.01, held=True) as rig:
        answer = await rig.post(COMPLETIONS, prompt="x" * 40, max_tokens=9)
        assert answer.status_code == 504
        recorder.close()
    ((input_tokens, output_tokens),) = shape(tmp_path / "load.jsonl")[0]
    assert (input_tokens, output_tokens) == (40, 1)


PROMPTS = st.lists(st.integers(0, 50), min_size=1, max_size=80)


@given(PROMPTS, PROMPTS, st.integers(0, 80))
def test_two_prompts_share_the_numbers_of_the_whole_blocks_that_they_share(
    one: list[int], other: list[int], common: int
) -> None:
    other = one[:common] + other
    key = b"k" * 32
    found = [prompt_hashes(request(tokens), key) for tokens in (one, other)]
    assert [len(each) for each in found] == [len(one) // 16, len(other) // 16]
    assert leading(*found) == leading(one, other) // BLOCK_TOKENS
    assert all(0 <= number < 2**53 for each in found for number in each)


def test_prompts_that_the_cache_keeps_apart_share_nothing() -> None:
    tokens = list(range(32))
    lora = LoRARequest("pirate", 1)
    key, another = b"k" * 32, b"l" * 32
    found = [
        prompt_hashes(request(tokens), key),
        prompt_hashes(request(tokens), another),  # of another server: no guess can be checked
        prompt_hashes(request(tokens, cache_salt="a"), key),
        prompt_hashes(request(tokens, lora=lora), key),
    ]
    assert len({number for each in found for number in each}) == 8


def test_the_file_is_new_bounded_and_its_owners(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "load.jsonl"
    file.write_text("an earlier one")
    recorder = opened(file, most_bytes=500)
    with caplog.at_level(logging.WARNING):
        for number in range(20):
            arrival = recorder.arrived(request(list(range(40)), id=number))
            if arrival is not None:
                recorder.answered(arrival, 3)
        recorder.close()
    made = tmp_path / "load-2.jsonl"
    assert file.read_text() == "an earlier one"
    assert made.stat().st_size <= 500
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert len(read_timed_trace(made, UNITS, None)) == recorder.num_recorded > 0
    assert "fill --record-mib" in caplog.text
    assert recorder.arrived(request([1])) is None


@pytest.fixture
def full_disk() -> Iterator[BinaryIO]:
    with Path("/dev/full").open("wb", buffering=0) as file:
        yield file


async def test_a_disk_that_is_full_ends_the_recording_and_not_the_server(
    tmp_path: Path, full_disk: BinaryIO, caplog: pytest.LogCaptureFixture
) -> None:
    config = build_test_config(write_model_folder(tmp_path, context_tokens=512))
    recorder = LoadRecorder(Path("load.jsonl"), full_disk, 2**20)
    async with serve_app(config, recorder=recorder) as rig:
        for _ in range(2):
            assert (await rig.post(COMPLETIONS, prompt="hi", max_tokens=2)).status_code == 200
        recorder.close()
        assert (await rig.post(COMPLETIONS, prompt="hi", max_tokens=2)).status_code == 200
    assert "the recording ends" in caplog.text


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (["--record", "{folder}/nowhere/load.jsonl"], "is no folder; make it"),
        (["--record", "{folder}"], "is a folder; name a file in it"),
        (["--record", "load.jsonl", "--api-server-count", "2"], "of one HTTP process"),
        (["--record", "load.jsonl", "--record-mib", "0"], "--record-mib"),
    ],
)
def test_a_recording_that_cannot_be_made_is_an_error_before_the_model_is_read(
    flags: list[str], fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["serve", str(tmp_path), *(flag.format(folder=tmp_path) for flag in flags)]
    try:
        code = main(words)
    except SystemExit as end:
        code = int(end.code or 0)
    assert code in (1, 2)
    assert fault in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_an_error() -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        open_recorder(RecordOptions(file=Path("/proc/load.jsonl")))


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("[" * 100_000, "nested deeper than"),
        ('{"input_length": 1e99}', "must be a whole number of tokens"),
        ('{"input_length": 99999999999, "output_length": 1}', "from 1 to 16777216"),
        ('{"input_length": 4, "output_length": 1, "hash_ids": [1', "is not JSON"),
        ("\x00\x01", "is not JSON"),
    ],
)
def test_a_damaged_recording_is_an_error_with_its_line(
    line: str, fault: str, tmp_path: Path
) -> None:
    path = tmp_path / "load.jsonl"
    path.write_text('{"input_length": 4, "output_length": 1}\n' + line)
    with pytest.raises(ConfigError, match=fault) as error:
        read_timed_trace(path, UNITS, None)
    assert "line 2" in str(error.value)
    whole = tmp_path / "load.json"
    whole.write_text(json.dumps({"block_size": 64, "requests": []})[:-2] + line)
    with pytest.raises(ConfigError):
        read_weka_trace(whole, 1.0, None)
