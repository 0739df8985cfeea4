"""`atom advise`: its outputs, its exit codes, and a clear end of every odd question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atom.entrypoints.cli import main
from benchmarks.workloads.shapes import SHAPES

SLO = "ttft=2s,itl=50ms@p90"
LOAD = "rate=2/s,in=64,out=2"


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "qwen3-8b.json"
    path.write_text(json.dumps(SHAPES["qwen3-8b"]))
    return str(path)


def document(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["advise", *arguments, "-o", "json"]) == code
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def ask(
    model: str, *more: str, slo: str = SLO, load: str = LOAD, cards: str = "MI300X"
) -> list[str]:
    return [
        *("--model", model, "--slo", slo, "--load", load, "--cards", cards),
        *("--quant", "none", "--max-devices", "2"),
        *more,
    ]


def reasons(found: dict[str, Any]) -> str:
    return "; ".join(f"{lost['form']}: {lost['why']}" for lost in found["lost"])


def test_every_form_is_a_row_or_has_a_reason(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, *ask(model, cards="MI300X,MI355X,MI999"))
    labels = {f"{row['card']} x {row['tensorParallel']}" for row in found["rows"]}
    for card in ("MI300X", "MI355X"):
        for ranks in (1, 2, 4, 8):
            form = f"{card} x {ranks}"
            assert form in labels or form in reasons(found)
    assert "MI999: is no known card; known: MI100" in reasons(found)
    assert "needs 4 devices of at most 2" in reasons(found)
    for row in found["rows"]:
        assert row["evidence"]["kind"] in ("measured", "transported", "physics")
        assert row["evidence"]["stepError"] > 0
        for latency in row["latencies"].values():
            for ends in latency.values():
                assert ends["low"] <= ends["middle"] <= ends["high"]
        assert row["goodput"]["low"] <= row["goodput"]["middle"] <= row["goodput"]["high"]
        assert row["goodput"]["middle"] >= 2


def test_prices_decide_and_a_price_of_nothing_is_a_price(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("MI300X: 9\nMI325X: 0\n")
    found = document(capsys, *ask(model, "--prices", str(prices), cards="MI300X,MI325X"))
    assert found["rows"][0]["card"] == "MI325X"
    assert found["rows"][0]["costPerMillionTokens"] == 0
    assert not any("no price" in note for note in found["notes"])
    prices.write_text("MI300X: 9\n")
    found = document(capsys, *ask(model, "--prices", str(prices), cards="MI300X,MI325X"))
    assert any("no price is known of MI325X" in note for note in found["notes"])


def test_nothing_that_meets_ends_with_3_and_the_nearest(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # One request alone is in time, and many are not.
    asked = ask(model, slo="ttft=60ms@p99", load="rate=100/s,in=2000,out=50")
    found = document(capsys, *asked, code=3)
    assert found["meets"] is False
    assert found["rows"] == []
    assert found["manifest"] is None
    assert set(found["nearest"]["misses"]) == {"ttft"}
    assert main(["advise", *asked, "-o", "yaml"]) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "nothing meets ttft=60ms@p99; the nearest is qwen3-8b, MI300X x" in printed.err
    assert "--max-devices" in printed.err


def test_a_target_below_a_single_step_is_named_for_each_form(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, *ask(model, slo="itl=1ms@p50"), code=3)
    assert found["nearest"] is None
    assert "even a single request misses itl" in reasons(found)


def test_a_request_that_no_card_holds_says_how_long_one_may_be(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    too_long = document(capsys, *ask(model, load="rate=1/s,in=50000,out=1000"), code=3)
    assert "has 51,000 tokens, and the model's context is 40,960" in reasons(too_long)
    large = tmp_path / "large.json"
    large.write_text(json.dumps({**SHAPES["qwen3-8b"], "num_hidden_layers": 3000}))
    no_room = document(capsys, *ask(str(large)), code=3)
    assert "does not fit: the weights" in reasons(no_room)


def test_one_pod_that_is_mostly_idle_is_told_that_it_may_sleep(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, *ask(model, load="rate=30/h,in=64,out=4"))
    assert any("may sleep between requests" in note for note in found["notes"])


def test_a_short_trace_is_answered_with_a_note(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    entries = [
        {
            "timestamp": 500 * number,
            "input_length": 600,
            "output_length": 5,
            "hash_ids": [0, number],
        }
        for number in range(8)
    ]
    trace.write_text("\n".join(map(json.dumps, entries)))
    asked = ask(
        model, "--timed-trace-chunk-hash-size", "512", "--timed-trace-sec-multiplier", "0.001"
    )
    at = asked.index("--load")
    asked[at : at + 2] = ["--trace", str(trace)]
    found = document(capsys, *asked)
    assert any("the trace spans 3.5 s" in note for note in found["notes"])
    assert found["rows"][0]["cachedShare"] > 0.5


def test_the_table_names_the_evidence_and_the_page_has_a_chart(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", *ask(model)]) == 0
    text = capsys.readouterr().out
    assert "TTFT p50/p90/p99 ms" in text
    assert "chosen: qwen3-8b, MI300X x 1" in text
    assert "physics ±90%" in text
    assert main(["advise", *ask(model), "-o", "html"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("<!doctype html>")
    assert "<svg" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (("--cards", "MI999"), "--cards MI999: no card of that name is known; known: MI100"),
        (("--slo", "fast"), "--slo: fast"),
        (("--load", "rate=2"), "--load: in is missing"),
        (("--prices", "{folder}"), "--prices"),
        (("--prices", "{folder}/bad.yaml"), "is no price; give a number from 0"),
        (("--rates", "{folder}/nowhere"), "is no folder of tables"),
        (("--model", "{folder}/nowhere.json"), "give the file, its folder, or hf://Org/Name"),
        (("--model", "{folder}/list.json"), "must hold a JSON object"),
        (("--model", "{folder}/other.json"), "NoSuchForCausalLM"),
        (("--model", "{folder}/quantised.json", "--quant", "fp8"), "is quantised already"),
    ],
)
def test_a_wrong_question_is_one_line_with_what_where_and_a_remedy(
    change: tuple[str, ...],
    fault: str,
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "bad.yaml").write_text("MI300X: dear\n")
    (tmp_path / "list.json").write_text("[]")
    other = {**SHAPES["qwen3-8b"], "architectures": ["NoSuchForCausalLM"]}
    (tmp_path / "other.json").write_text(json.dumps(other))
    (tmp_path / "quantised.json").write_text(json.dumps(SHAPES["qwen3-8b-awq"]))
    flags = {"--model": model, "--slo": SLO, "--load": LOAD, "--cards": "MI300X"}
    flags |= dict(zip(change[::2], change[1::2], strict=True))
    words = [
        word.format(folder=tmp_path) for flag, value in flags.items() for word in (flag, value)
    ]
    assert main(["advise", *words]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert fault in printed.err
    assert len(printed.err.strip().splitlines()) == 1


def test_a_row_that_costs_more_and_is_slower_is_lost(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text('{"MI300X": 3, "MI355X": 3}')
    asked = ask(model, "--prices", str(prices), "--max-devices", "1", cards="MI300X,MI355X")
    found = document(capsys, *asked)
    assert [row["card"] for row in found["rows"]] == ["MI355X"]
    assert "MI300X x 1, 1 pods: qwen3-8b, MI355X x 1, 1 pods costs no more" in reasons(found)
