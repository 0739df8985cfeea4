"""Turn the records of a suite's parts into the lines at its end; pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.support.suite_record import RunRecord
from tools.suite.skips import AcceptedDebt, owner_of

DEAREST = 10


@dataclass(frozen=True, slots=True)
class PartTimes:
    """The seconds of a part: by the clock, and of processor time with the processes that ended in
    it. Other work on the machine lengthens the first, and the second little."""

    wall: float
    processor: float


@dataclass(frozen=True, slots=True)
class PartResult:
    """The end of a part: its exit code, its times, and its record if it ran tests."""

    name: str
    code: int
    seconds: PartTimes
    record: RunRecord | None


@dataclass(frozen=True, slots=True)
class Summary:
    """The lines to print, and the exit code."""

    lines: tuple[str, ...]
    code: int


def sum_up(
    results: Sequence[PartResult], accepted: Sequence[AcceptedDebt], *, refuses_debts: bool
) -> Summary:
    """Sum a suite up: a table of its parts, failures, dearest files, skips by owner, and debts.

    refuses_debts: fail for a debt that is not accepted, as CI does.
    """
    debts = _debts(results)
    unknown = [reason for reason in debts if not any(each.covers(reason) for each in accepted)]
    failed = any(result.code for result in results)
    lines = [*_table(results), *_failures(results), *_dearest(results), *_owned(results)]
    lines += _unproven(debts, accepted)
    if unknown and refuses_debts:
        lines.append("error: a debt that tests/accepted_debts.yaml does not accept; prove the test "
                     "here, or add the reason and a sentence why")  # fmt: skip
    return Summary(tuple(lines), int(failed or bool(unknown and refuses_debts)))


def _table(results: Sequence[PartResult]) -> Iterator[str]:
    head = f"{'part':12} {'ended':8} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}"
    yield f"{head} {'processor':>10}"
    for each in results:
        record = each.record or RunRecord()
        failed, ran = len(record.failed), sum(record.ran.values())
        counts = f"{max(ran - failed, 0):7} {failed:7} {len(record.skipped):8}"
        ended = "well" if each.code == 0 else f"with {each.code}"
        times = f"{each.seconds.wall:8.0f} {each.seconds.processor:10.0f}"
        yield f"{each.name:12} {ended:8} {counts} {times}"


def _failures(results: Sequence[PartResult]) -> Iterator[str]:
    failed = [test for each in results if each.record for test in each.record.failed]
    if failed:
        yield "failed:"
        yield from (f"  {test}" for test in failed)


def _dearest(results: Sequence[PartResult]) -> Iterator[str]:
    seconds: Counter[str] = Counter()
    for each in results:
        seconds.update(each.record.seconds if each.record else {})
    if seconds:
        yield f"the dearest files, of {sum(seconds.values()):.0f} s in all:"
        yield from (f"  {took:6.1f} s  {file}" for file, took in seconds.most_common(DEAREST))


def _owned(results: Sequence[PartResult]) -> Iterator[str]:
    owners = Counter(owner_of(reason) for _, reason in _skips(results))
    for owner, count in owners.items():
        if owner is not None:
            yield f"skipped here, proven by {owner.value}: {count}"


def _unproven(debts: Mapping[str, list[str]], accepted: Sequence[AcceptedDebt]) -> Iterator[str]:
    if debts:
        yield "unproven here:"
    for reason, tests in debts.items():
        why = next((each.why for each in accepted if each.covers(reason)), "NOT ACCEPTED")
        yield f"  {len(tests)} × {reason} ({tests[0]}): {why}"


def _debts(results: Sequence[PartResult]) -> dict[str, list[str]]:
    """Map each reason that has no owner to its tests."""
    found: dict[str, list[str]] = defaultdict(list)
    for test, reason in _skips(results):
        if owner_of(reason) is None:
            found[reason].append(test)
    return dict(found)


def _skips(results: Sequence[PartResult]) -> Iterator[tuple[str, str]]:
    for each in results:
        yield from each.record.skipped if each.record else ()
