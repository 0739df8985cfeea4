"""The verdict and the tables of `atom preflight`."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from atom import preflight
from atom.self_test.check_table import Verdict, kind_rows, machine_rows, verdict_of
from atom.self_test.report import Report, make_report


@pytest.fixture(scope="module")
def here() -> Report:
    return make_report("cpu", torch.device("cpu"), tries=False)


def served(report: Report, device: str, computed: tuple[bool, ...]) -> Report:
    """A report of these kinds of models, each computed or not."""
    chosen: dict[str, dict[str, object]] = {
        f"kind {number}": {"chosen": {"linear": "fast", "norm": "slow", "experts": "fast"}}
        if good
        else {"error": "ConfigError: no backend has linear"}
        for number, good in enumerate(computed)
    }
    return replace(report, device=device, chosen=chosen)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_verdict_names_every_kind_that_is_not_served(here: Report, device: str) -> None:
    for computed in product((True, False), repeat=3):
        verdict, sentence = verdict_of(served(here, device, computed))
        expected = (
            Verdict.READY
            if all(computed)
            else (Verdict.PARTLY if any(computed) else Verdict.NOT_READY)
        )
        assert verdict is expected
        if verdict is Verdict.PARTLY:
            named = [number for number in range(3) if f"kind {number}" in sentence]
            assert named == [number for number, good in enumerate(computed) if not good]
        if verdict is Verdict.NOT_READY:
            assert "no backend has linear" in sentence


def test_rows_count_operations_and_name_no_operation(here: Report) -> None:
    good, bad = kind_rows(served(here, "cpu", (True, False)))
    assert (good.served, good.backends) == (True, "fast (2), slow (1)")
    assert (bad.served, bad.backends) == (False, "ConfigError: no backend has linear")
    facts = dict(machine_rows(here))
    assert facts["device"] == "cpu"
    assert "torch" in facts["software"]


def test_without_a_flag_it_is_a_verdict_and_short_tables(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert preflight.main([]) == 0
    printed = capsys.readouterr().out
    first, *rest = printed.splitlines()
    assert first.startswith("ready: ")
    assert max(map(len, rest)) <= 100
    assert len(printed) < 3000
    assert preflight.main(["--check"]) == 0
    assert capsys.readouterr().out == printed
