"""A suite ends with its failures, the owners of its skips, and the proofs that are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.suite_record import RunRecord
from tools.suite.parts import Suite
from tools.suite.skips import AcceptedDebt, Owner, owner_of, read_accepted
from tools.suite.summary import PartResult, PartTimes, sum_up
from tools.suite.times import write_times

ROOT = Path(__file__).parents[3]
TIMES = PartTimes(wall=12.4, processor=7.3)
FISH = AcceptedDebt("^fish is not on", "Bash shows it.")


def part(name: str = "engine", code: int = 0, **record: object) -> PartResult:
    return PartResult(name, code, TIMES, RunRecord(**record))  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [0, 1, 2, 5])
@pytest.mark.parametrize("refuses", [False, True])
def test_a_suite_fails_if_a_part_fails(code: int, refuses: bool) -> None:
    results = [part("engine"), part("operator", code), PartResult("checks", 0, TIMES, None)]
    assert sum_up(results, [], refuses_debts=refuses).code == int(code != 0)


def test_failures_are_named_and_the_dearest_files_come_first() -> None:
    found = sum_up(
        [
            part(seconds={"tests/a.py": 1.0, "tests/b.py": 30.0}, ran={"tests/a.py": 3}),
            part("operator", 1, failed=["tests/c.py::test_d"], ran={"tests/c.py": 2}),
        ],
        [],
        refuses_debts=False,
    ).lines
    assert "  tests/c.py::test_d" in found
    order = [line.split()[-1] for line in found if " s  tests" in line]
    assert order == ["tests/b.py", "tests/a.py"]
    assert [line.split() for line in found if line.startswith("operator")] == [
        ["operator", "with", "1", "1", "1", "0", "12", "7"]
    ]


@pytest.mark.parametrize(
    ("reason", "owner"),
    [
        ("torch sees no GPU", Owner.CARD),
        ("torch sees fewer than two GPUs", Owner.CARD),
        ("one GPU: there is no other's memory to write", Owner.CARD),
        ("the library's operation is chosen on NVIDIA's cards from Hopper on", Owner.CARD),
        ("native_cpu is not captured into graphs here", Owner.CARD),
        ("not made for graphs", Owner.CARD),
        ("tiles are the kernels'", Owner.CARD),
        ("this card copies nothing by description", Owner.CARD),
        ("native_cpu: made for float32, not bfloat16", Owner.BACKEND),
        ("torch_cpu leaves sinks to another backend", Owner.BACKEND),
        ("products of this backend come whole", Owner.BACKEND),
        ("aiter is not installed", Owner.AITER),
        ("is for gfx942 and gfx950", Owner.AITER),
        ("zsh is not on this machine", None),
        ("no helm in PATH nor at .cache/helm: python -m devcluster build makes one", None),
        ("triton is not installed", None),
        ("no cluster: not root on Linux", None),
        ("kubectl is not on this machine; make cluster-up builds it", None),
        ("", None),
    ],
)
def test_a_skip_is_owned_by_a_machine_or_a_backend_and_else_a_debt(
    reason: str, owner: Owner | None
) -> None:
    assert owner_of(reason) is owner


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize(
    ("reason", "is_debt", "accepted"),
    [
        ("torch sees no GPU", False, True),
        ("fish is not on this machine", True, True),
        ("no helm in PATH", True, False),
    ],
)
def test_only_a_debt_that_nobody_accepted_fails_and_only_if_asked(
    reason: str, is_debt: bool, accepted: bool, refuses: bool
) -> None:
    found = sum_up([part(skipped=[("tests/a.py::b", reason)])], [FISH], refuses_debts=refuses)
    assert found.code == int(refuses and not accepted)
    assert ("unproven here:" in found.lines) == is_debt
    assert any("NOT ACCEPTED" in line for line in found.lines) == (not accepted)


def test_accepted_debts_have_a_reason_and_each_is_one() -> None:
    accepted = read_accepted(ROOT / "tests" / "accepted_debts.yaml")
    assert accepted
    assert len(accepted) <= 10, "a list this long is no longer read; prove some of them"
    assert all(len(each.why) > 20 for each in accepted)


def test_a_debt_without_a_reason_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "debts.yaml"
    file.write_text("- reason: fish\n")
    with pytest.raises(ValueError, match="needs reason and why"):
        read_accepted(file)


def test_the_page_of_times_keeps_the_other_suites_section(tmp_path: Path) -> None:
    page = tmp_path / "times.md"
    write_times(page, Suite.TEST, [part("engine", ran={"a": 2}, seconds={"a": 1.0})])
    write_times(page, Suite.ALL, [part("kernels", ran={"b": 3}, seconds={"b": 2.0})])
    write_times(page, Suite.TEST, [part("operator", ran={"c": 4}, seconds={"c": 9.0})])
    text = page.read_text()
    assert "| operator | 4 | 12 | 7 | c | 9 |" in text
    assert "| kernels | 3 | 12 | 7 | b | 2 |" in text
    assert "engine" not in text
    assert text.count("## make test ") == text.count("## make test-all ") == 1


def test_the_projects_page_of_times_takes_a_section(tmp_path: Path) -> None:
    page = tmp_path / "test-times.md"
    page.write_text((ROOT / "docs" / "results" / "test-times.md").read_text())
    for _ in range(2):
        write_times(page, Suite.TEST, [part("engine", ran={"a": 2}, seconds={"a": 1.0})])
    assert page.read_text().count("| engine | 2 | 12 | 7 | a | 1 |") == 1
    assert "Before the split" in page.read_text()
