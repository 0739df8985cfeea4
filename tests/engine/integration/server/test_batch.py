"""`atom batch` answers a file of requests as the server would, and goes on where it was ended."""

from __future__ import annotations

import asyncio
import fcntl
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atom.entrypoints.batch.batch_run import BatchFiles, answer_file
from atom.entrypoints.request_lines.batch_lines import AnswerFile
from atom.entrypoints.request_lines.line_run import BatchCounts
from atom.errors import ConfigError, EngineDeadError
from atom.model_engine.front.input_output_processor import InputOutputProcessor
from tests.support.engine_core.front_half import EchoCore, build_test_config, write_model_folder
from tests.support.models.pooling_checkpoint import make_embedder
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.waiting import eventually

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ENGINE = ["--device", "cpu", "--num-kv-blocks", "64", "--max-model-len", "128", "--log-level",
          "error"]  # fmt: skip


def asked(name: str, url: str = TEXT, **body: Any) -> dict[str, Any]:
    fields = body or {"prompt": f"say {name}", "max_tokens": 3, "temperature": 0}
    return {"custom_id": name, "method": "POST", "url": url, "body": fields}


def write(path: Path, requests: list[Any]) -> Path:
    lines = [each if isinstance(each, str) else json.dumps(each) for each in requests]
    path.write_text("\n".join(lines) + "\n")
    return path


def answers_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(tmp_path: Path, model: Path, *more: str) -> tuple[int, str]:
    """The exit status, and the last line on standard error."""
    files = ["-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")]
    command = [sys.executable, "-m", "atom.entrypoints.cli", "batch", "--model", str(model)]
    ended = subprocess.run(
        [*command, *files, *ENGINE, *more], stderr=subprocess.PIPE, text=True, check=False
    )
    return ended.returncode, ended.stderr.rstrip().rpartition("\n")[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"))


def test_each_line_is_answered_or_says_why_not_and_a_second_run_goes_on(
    model: Path, tmp_path: Path
) -> None:
    """A run that was ended in the middle of a line leaves it; the next asks that request again."""
    good = [asked(f"r{number}") for number in range(12)]
    write(tmp_path / "in.jsonl", good[:5])
    status, said = run(tmp_path, model)
    assert said.startswith("5 answered, 0 failed, 0 answered before, of 5 requests")
    assert status == 0
    first = answers_in(tmp_path / "out.jsonl")
    assert {each["custom_id"] for each in first} == {f"r{number}" for number in range(5)}
    assert all(each["response"]["status_code"] == 200 and each["error"] is None for each in first)
    assert all(each["response"]["body"]["object"] == "text_completion" for each in first)

    out = tmp_path / "out.jsonl"
    whole = out.read_bytes()
    kept = whole[: whole.rindex(b"\n", 0, -1) + 30]  # 29 bytes into the last line
    out.write_bytes(kept)
    bad = [
        asked("too hot", temperature=-1, prompt="a"), asked("streams", prompt="a", stream=True),
        asked("elsewhere", url="/v1/models"), "no json", asked("r1"), "",
    ]  # fmt: skip
    write(tmp_path / "in.jsonl", [*good, *bad])
    status, said = run(tmp_path, model, "--max-concurrency", "3")
    assert said.startswith("8 answered, 5 failed, 4 answered before, of 17 requests")
    assert status == 1
    found = answers_in(out)
    assert out.read_bytes().startswith(kept[: kept.rindex(b"\n") + 1])
    by_name = {each["custom_id"]: each for each in found}
    assert {name for name in by_name if name} == {
        *(f"r{number}" for number in range(12)), "too hot", "streams", "elsewhere",
    }  # fmt: skip
    assert by_name["too hot"]["response"]["status_code"] == 400
    assert by_name["too hot"]["response"]["body"]["error"]["param"] == "temperature"
    assert "stream" in by_name["streams"]["error"]["message"]
    assert "/v1/models" in by_name["elsewhere"]["error"]["message"]
    nameless = [each["error"]["message"] for each in found if each["custom_id"] is None]
    assert len(nameless) == 2
    assert "line 16" in nameless[0] + nameless[1]
    texts = {each["custom_id"]: each for each in first}
    again = by_name["r2"]["response"]["body"]["choices"][0]["text"]
    assert again == texts["r2"]["response"]["body"]["choices"][0]["text"]


def test_an_embedding_model_answers_its_urls(tmp_path: Path) -> None:
    model = make_embedder(tmp_path / "embedder")
    write(
        tmp_path / "in.jsonl",
        [
            asked("e", "/v1/embeddings", input=["a", "b"], dimensions=4),
            asked("s", "/v1/score", text_1="a", text_2="b"),
            asked("r", "/v1/rerank", query="a", documents=["b", "a"]),
            asked("c", CHAT, messages=[{"role": "user", "content": "hi"}]),
        ],
    )
    assert run(tmp_path, model)[0] == 1
    found = {each["custom_id"]: each["response"] for each in answers_in(tmp_path / "out.jsonl")}
    assert [len(each["embedding"]) for each in found["e"]["body"]["data"]] == [4, 4]
    assert len(found["s"]["body"]["data"]) == 1
    assert found["r"]["body"]["results"][0]["index"] == 1
    assert found["c"]["status_code"] == 400


async def test_so_many_requests_are_open_at_once_and_a_dead_engine_ends_the_run(
    tmp_path: Path,
) -> None:
    config = build_test_config(write_model_folder(tmp_path))
    write(tmp_path / "in.jsonl", [asked(f"r{number}") for number in range(9)])
    files = BatchFiles(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    cores: list[EchoCore] = []

    def make_core(config: Any, on_event: Any) -> EchoCore:
        cores.append(EchoCore(config, on_event, held=True))
        return cores[0]

    told: list[BatchCounts] = []
    running = asyncio.create_task(
        answer_file(
            config, InputOutputProcessor(config), files, names=(), most_at_once=4,
            told=told.append, core_factory=make_core,
        )
    )  # fmt: skip
    await eventually(lambda: bool(cores) and len(cores[0].added) == 4, "four are asked")
    cores[0].release()
    cores[0].held = True
    await eventually(lambda: len(cores[0].added) > 4, "others are asked then")
    cores[0].die("the device is gone")
    with pytest.raises(EngineDeadError, match="the device is gone"):
        await running
    kept = answers_in(files.answers)
    assert all(each["response"]["status_code"] == 200 for each in kept)
    assert len(kept) == told[-1].answered < 9


def test_files_that_cannot_be_used_are_refused_before_the_model_is_opened(tmp_path: Path) -> None:
    there = write(tmp_path / "in.jsonl", [asked("a")])
    with pytest.raises(ConfigError, match="no such file"):
        BatchFiles(tmp_path / "none.jsonl", tmp_path / "out.jsonl").check()
    with pytest.raises(ConfigError, match="is the input file"):
        BatchFiles(there, there).check()
    with pytest.raises(ConfigError, match="cannot be written"):
        BatchFiles(there, tmp_path / "missing" / "out.jsonl").check()
    with (tmp_path / "out.jsonl").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another run"):
            BatchFiles(there, tmp_path / "out.jsonl").check()


def test_an_error_of_the_server_is_asked_again_and_one_of_the_request_is_not(
    tmp_path: Path,
) -> None:
    rows = [("ok", 200), ("bad", 400), ("late", 504), ("late", 200), ("busy", 503)]
    lines = [
        {"custom_id": name, "response": {"status_code": status, "body": {}}, "error": None}
        for name, status in rows
    ]
    path = write(tmp_path / "out.jsonl", [*lines, {"custom_id": "x", "response": None}])
    file = AnswerFile(path)
    assert file.answered == {"ok", "bad", "late"}
    file.close()


def test_a_line_that_could_not_be_asked_is_told_of_once(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    for _ in range(2):
        file = AnswerFile(path)
        file.refuse("a", "line 1 is no request")
        file.refuse(None, "line 2 is no request")
        file.refuse("a", "line 1 is no request")
        file.close()
    assert [each["custom_id"] for each in answers_in(path)] == ["a", None]
