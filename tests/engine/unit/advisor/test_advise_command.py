"""`atom advise`: its outputs, its exit codes, and a clear end of every odd question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atom.advisor.errors import AdviceError
from atom.entrypoints.advise.right_size import read_measured
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


@pytest.fixture
def burst(model: str, tmp_path: Path) -> list[str]:
    """A question of a recording that two devices answer in time, and one does not."""
    trace = tmp_path / "load.jsonl"
    line = json.dumps({"timestamp": 0, "input_length": 4000, "output_length": 1})
    trace.write_text(f"{line}\n" * 12)
    asked = ask(model, slo="ttft=800ms")
    at = asked.index("--load")
    asked[at : at + 2] = ["--trace", str(trace)]
    return asked


def test_one_device_fewer_is_told_with_what_it_misses_and_saves(
    burst: list[str], model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("MI300X: 3")
    asked = [*burst, "--one-fewer", "--prices", str(prices)]
    found = document(capsys, *asked)
    chosen, fewer = found["rows"][0], found["oneFewer"]
    assert (chosen["devices"], fewer["devices"]) == (2, 1)
    assert 0 < fewer["requestsInTime"] < 12
    assert fewer["misses"]["ttft"] > 0.8
    assert main(["advise", *asked]) == 0
    told = capsys.readouterr().out
    assert "(1 of 2 devices) answers" in told
    assert "it saves 3 an hour" in told
    alone = [*burst, "--one-fewer", "--slo", "ttft=20s"]
    assert document(capsys, *alone)["oneFewer"] is None
    assert main(["advise", *alone]) == 0
    assert "no form of it has fewer" in capsys.readouterr().out


def test_a_recorded_load_and_its_measured_replay_are_one_page(
    burst: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = tmp_path / "sweep.json"
    points = [{"request_rate": rate, "request_goodput": rate * 0.9} for rate in (20.0, 10.0)]
    sweep.write_text(json.dumps({"sweep": "request_rate", "points": points}))
    assert main(["advise", *burst, "--measured", str(sweep), "-o", "html"]) == 0
    page = capsys.readouterr().out
    assert "measured: 9 at 10, 18 at 20" in page
    assert "one device fewer: qwen3-8b, MI300X x 1, 1 pods: 0 at 0" in page
    assert "(1 of 2 devices) answers" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "cannot be read"),
        ("[" * 5000, "cannot be read"),
        ("[]", "has no run"),
        ('{"points": []}', "has no run"),
        ('{"points": [1]}', "has no request_rate"),
        ('{"request_rate": "self-timed", "request_goodput": 1}', "with --no-self-timed"),
        ('{"request_rate": 2.0}', "measure with --goodput"),
        ('{"request_rate": NaN, "request_goodput": 1}', "has no request_rate"),
    ],
)
def test_a_measured_file_that_has_no_goodput_is_an_error(
    text: str, fault: str, tmp_path: Path
) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(text)
    with pytest.raises(AdviceError, match=fault):
        read_measured(path)


def test_a_measured_goodput_is_drawn_on_a_page_alone(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", *ask(model, "--measured", "sweep.json")]) == 1
    assert "add -o html" in capsys.readouterr().err


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
        (("--kv-disk-size", "9"), "add --kv-offloading-size"),
        (("--acceptance", "0.7"), "nothing says who drafts"),
        (("--method", "ngram"), "nothing says how many drafts are accepted"),
        (("--method", "ngram", "--acceptance", "1.2"), "must be from 0 to 1"),
        (("--method", "eagle3", "--acceptance", "0.7"), "name its config.json"),
        (("--method", "mtp", "--acceptance", "0.7", "--draft-model", "x"), "belongs to --method"),
        (("--method", "ngram", "--acceptance", "0.7", "--num-speculative-tokens", "17"), "1 to 16"),
        (("--lora", "8"), "must be N:RANK"),
        (("--lora", "8:0"), "of rank 1 to 512"),
        (("--max-loras", "4"), "add --lora N:RANK"),
        (("--cards", "MI300X:half"), "no card of that name is known"),
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


def test_drafts_and_adapters_are_in_rows_and_in_the_manifest(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--method", "ngram", "--acceptance", "0.9", "--lora", "6:16", "--max-loras", "2")
    words += ("--max-devices", "1")
    asked = ask(model, *words, slo="tpot=50ms@p50", load="rate=1/s,in=64,out=12")
    found = document(capsys, *asked)
    chosen = found["rows"][0]
    assert chosen["speculative"]["method"] == "ngram", "at few rows drafts pay"
    assert chosen["lora"] == {"adapters": 6, "rank": 16, "maxLoras": 2}
    engine = found["manifest"]["spec"]["engine"]
    assert engine["speculative"] == {"method": "ngram", "tokens": 5}
    assert engine["lora"] == {"maxLoras": 2, "maxLoraRank": 16, "maxCpuLoras": 6}
    label = "up to 5 ngram drafts (90% accepted), 6 adapters of rank 16 (2 on the device)"
    assert f"{label}, 1 pods costs no more and is no slower" in reasons(found)


def test_tiers_that_hold_nothing_are_lost_with_their_sizes(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--kv-offloading-size", "8", "--kv-disk-size", "100", "--max-devices", "1")
    found = document(capsys, *ask(model, *words))
    assert "8 GiB of host memory, 100 GiB of files" in reasons(found)
    assert "the files do not pay (they held 0% of prompt tokens)" in reasons(found)
    assert "the tier does not pay (it held 0% of prompt tokens)" in reasons(found)


def test_a_part_of_a_card_is_a_card_with_a_share_of_its_price(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text('{"MI300X": 8}')
    asked = ask(model, "--prices", str(prices), load="rate=1/s,in=64,out=8")
    asked[asked.index("--cards") + 1] = "MI300X:cpx_nps4,MI300X"
    found = document(capsys, *asked)
    (part,) = (row for row in found["rows"] if row["card"] == "MI300X:cpx_nps4")
    assert part["costPerHour"] == 1
    accelerator = found["manifest"]["spec"]["accelerator"]
    assert accelerator == {
        "type": "amd", "product": "MI300X", "claim": {"partition": "cpx_nps4"}
    }  # fmt: skip
    assert "the links between several MI300X:cpx_nps4 are unknown" in reasons(found)


def test_a_row_that_costs_more_and_is_slower_is_lost(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text('{"MI300X": 3, "MI355X": 3}')
    asked = ask(model, "--prices", str(prices), "--max-devices", "1", cards="MI300X,MI355X")
    found = document(capsys, *asked)
    assert [row["card"] for row in found["rows"]] == ["MI355X"]
    assert "MI300X x 1, 1 pods: qwen3-8b, MI355X x 1, 1 pods costs no more" in reasons(found)
