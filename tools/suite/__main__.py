"""Run a suite's parts side by side; print each one's output when it ends, and the sum."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from devcluster import target
from tests.support.suite_record import RECORD_VARIABLE, RunRecord
from tools.suite.parts import Part, Suite, parts_of
from tools.suite.skips import read_accepted
from tools.suite.summary import PartResult, PartTimes, Summary, sum_up
from tools.suite.times import write_times

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / ".cache" / "suite"
ACCEPTED = ROOT / "tests" / "accepted_debts.yaml"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.suite", description=_first_line())
    parser.add_argument("suite", type=Suite, choices=list(Suite), metavar="test|all")
    parser.add_argument("--part", action="append", help="run only this part; may be repeated")
    parser.add_argument("--seed", type=int, default=1, help="order and draws of the tests")
    parser.add_argument("--refuse-debts", action="store_true", help="fail for an unaccepted skip")
    parser.add_argument("--write-times", type=Path, help="write the times of the parts to a page")
    args = parser.parse_args()
    keeps_index = not args.refuse_debts
    parts = parts_of(args.suite, args.seed, _test_texts(), keeps_index=keeps_index)
    if args.part:
        unknown = set(args.part) - {part.name for part in parts}
        if unknown:
            parser.error(f"no part {', '.join(sorted(unknown))}: {[part.name for part in parts]}")
        parts = [part for part in parts if part.name in args.part]
    if {"cluster", "operator"} <= {part.name for part in parts}:
        _build_programs()
    results = run_parts(parts, RECORDS / args.suite.value)
    summary = sum_up(results, read_accepted(ACCEPTED), refuses_debts=args.refuse_debts)
    _print_sum(args.suite, summary)
    if args.write_times:
        write_times(args.write_times, args.suite, results)
    return summary.code


def _build_programs() -> None:
    """Build helm, kubectl and the cluster's programs, unless they are cached.

    Parts run side by side, so the operator's part would skip the tests of the chart while the
    cluster's part builds helm. A build that fails is the cluster part's to report.
    """
    if target.why_unusable(os.environ) is None and target.resolve(os.environ).is_embedded:
        build = [sys.executable, "-m", "devcluster", "build"]
        subprocess.run(build, cwd=ROOT, stdin=subprocess.DEVNULL, check=False)


def run_parts(parts: Sequence[Part], records: Path) -> list[PartResult]:
    """Run the parts on the machine's cores and two more: the cluster's tests mostly wait, and a
    part that begins late is alone at the end, with one core idle."""
    records.mkdir(parents=True, exist_ok=True)
    for old in records.glob("*.json*"):
        old.unlink()
    names = ", ".join(part.name for part in parts)
    print(f"{names}: side by side; output follows each one's end", flush=True)
    with ThreadPoolExecutor((os.cpu_count() or 1) + 2) as pool:
        return list(pool.map(lambda part: _run(part, records), parts))


def _run(part: Part, records: Path) -> PartResult:
    file = records / f"{part.name}.json"
    environment = os.environ | {RECORD_VARIABLE: str(file)}
    began = time.monotonic()
    with subprocess.Popen(
        part.command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        output = process.stdout.read() if process.stdout else b""
        # In place of Popen's own wait, which does not say how much processor time was used.
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - began
    sys.stdout.buffer.write(b"\n== %s\n%s" % (part.name.encode(), output))
    sys.stdout.flush()
    times = PartTimes(wall, used.ru_utime + used.ru_stime)
    return PartResult(part.name, process.returncode, times, _read_records(file))


def _read_records(file: Path) -> RunRecord | None:
    """Read a part's record, with those of the runs that its tests started (FILE.…)."""
    found = [RunRecord.read(each) for each in sorted(file.parent.glob(f"{file.name}*"))]
    return RunRecord.merged(found) if found else None


def _print_sum(suite: Suite, summary: Summary) -> None:
    print(f"\n== make {'test' if suite is Suite.TEST else 'test-all'} in sum")
    print("\n".join(summary.lines), flush=True)


def _test_texts() -> dict[str, str]:
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in (ROOT / "tests").rglob("test_*.py")
    }


def _first_line() -> str:
    return (__doc__ or "").splitlines()[0]


if __name__ == "__main__":
    sys.exit(main())
