"""What running deployments have measured corrects an advice, within bounds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.advisor.accelerator import accelerator_of, card_of
from atom.advisor.candidates import Candidate, candidates
from atom.advisor.learned import learned_of
from atom.advisor.load import parse_load
from atom.advisor.question import ModelForm, Question
from atom.advisor.rates import Tables
from atom.advisor.slo import parse_slo
from atom.advisor.step_shape import StepShape
from atom.entrypoints.cli import main
from atom.sizing import ModelFacts
from atom.sizing.cards import CARDS, Vendor
from benchmarks.workloads.shapes import SHAPES

SOURCE, CARD = "path:///models/qwen3-8b", CARDS["H200"]
FACTS = ModelFacts.from_hf_config(SHAPES["qwen3-8b"])
QUESTION = Question(
    models=(ModelForm(label="m", source=SOURCE, facts=FACTS),),
    slo=parse_slo("ttft=9s@p90"),
    load=parse_load("rate=1/s,in=100,out=20"),
    cards=(CARD,),
    tables=Tables.packaged(),
    max_devices=1,
    prices={},
)


def running(percent: Any, name: str = "chat", card: str = "H200") -> dict[str, Any]:
    return {
        "kind": "AtomDeployment",
        "metadata": {"namespace": "apps", "name": name},
        "spec": {"model": {"source": SOURCE}, "accelerator": accelerator_of(CARDS[card], 1)},
        "status": {"steps": {"percentOfTable": percent, "pods": 2}},
    }


def candidate(question: Question) -> Candidate:
    (found,) = (each for each in candidates(question) if isinstance(each, Candidate))
    return found


@pytest.mark.parametrize("name", [name for name in CARDS if CARDS[name].vendor is not Vendor.CPU])
def test_a_card_is_read_from_a_manifest_as_it_is_written(name: str) -> None:
    written = accelerator_of(CARDS[name], 1)
    alike = [each for each in CARDS.values() if accelerator_of(each, 1) == written]
    assert card_of({"accelerator": written}) == (name if len(alike) == 1 else None)


@pytest.mark.parametrize("percent", [50, 90, 100, 130, 200])
def test_steps_are_predicted_as_long_as_they_were_seen(percent: int) -> None:
    plain = candidate(QUESTION)
    learned = learned_of([running(percent)])
    seen = candidate(replace(QUESTION, learned=learned))
    step = StepShape.decodes(8, 120)
    assert seen.timer.seconds(step) == pytest.approx(plain.timer.seconds(step) * percent / 100)
    assert seen.launches.op_by_op == pytest.approx(plain.launches.op_by_op * percent / 100)
    assert seen.engine_rate == pytest.approx(plain.engine_rate * 100 / percent)
    other = replace(QUESTION, learned=learned, cards=(CARDS["MI300X"],))
    assert candidate(other).timer.factor == 1.0, "of another card nothing was seen"


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=5))
def test_a_correction_is_the_median_within_bounds(percents: list[int]) -> None:
    objects = [running(each, name=f"c{place}") for place, each in enumerate(percents)]
    found = learned_of(objects)[SOURCE, "H200"]
    assert 0.5 <= found.factor <= 2.0
    assert min(percents) / 100 <= found.seen <= max(percents) / 100
    if 0.5 <= found.seen <= 2.0:
        assert found.factor == found.seen
    assert len(found.names) == len(percents)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


@given(
    part=st.sampled_from(("spec", "status", "metadata", "kind")),
    junk=JUNK,
    percent=st.sampled_from((None, True, "120", -5, 0, [], {})),
)
def test_odd_objects_teach_nothing(part: str, junk: Any, percent: Any) -> None:
    assert learned_of([running(percent)]) == {}
    odd = learned_of([{**running(120), part: junk}])
    assert odd == {} or part == "metadata"
    assert learned_of([{}]) == {}


def test_a_file_of_a_cluster_corrects_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "qwen3-8b.json"
    model.write_text(json.dumps(SHAPES["qwen3-8b"]))
    seen = tmp_path / "atomd.json"
    seen.write_text(json.dumps({"kind": "List", "items": [running(150), running(900, "sick")]}))
    words = ["advise", "--model", str(model), "--slo", "ttft=9s", "--load", "rate=1/s,in=64,out=4"]
    words += ["--cards", "H200", "--quant", "none", "--max-devices", "1"]
    assert main([*words, "--learned", str(seen)]) == 0
    told = capsys.readouterr().out
    assert "steps take 5.25 times the table in apps/chat, apps/sick, taken as 2.00" in told
    seen.write_text("3")
    assert main([*words, "--learned", str(seen)]) == 1
    assert "write it by kubectl get atomdeployments -A -o json" in capsys.readouterr().err
