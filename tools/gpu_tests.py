"""The parity matrix on this machine's GPU, and a page of what came of it: `make test-gpu`.

Every operation of every backend that the card has, against the reference, and the tests that are
marked for a GPU. The page names device and versions, since a result is one card's.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from atom.errors import AtomError
from atom.utils.device import detect_device
from atom.utils.versions import software_versions

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/results/gpu-parity.md"
PARITY = "tests/engine/ops/parity"
_NO_TESTS = 5  # pytest's exit code


@dataclass(slots=True)
class Counts:
    """Outcomes by file, and how often which reason was given for a test that was left out."""

    files: dict[str, Counter[str]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)

    def of(self, outcome: str) -> int:
        return sum(counter[outcome] for counter in self.files.values())


def read_counts(report: str) -> Counts:
    """Read the counts of pytest's JUnit report."""
    counts = Counts()
    for case in ET.fromstring(report).iter("testcase"):
        skipped = case.find("skipped")
        outcome = "passed"
        if skipped is not None:
            outcome = "skipped"
            counts.reasons[str(skipped.get("message"))] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            outcome = "failed"
        file = str(case.get("classname")).removeprefix("tests.engine.").replace(".", "/")
        counts.files.setdefault(file, Counter())[outcome] += 1
    return counts


def page(device: str, versions: Mapping[str, str], counts: Counts, command: str) -> str:
    """The page, in Markdown."""
    return "\n".join(_lines(device, versions, counts, command)) + "\n"


def _lines(device: str, versions: Mapping[str, str], counts: Counts, command: str) -> Iterator[str]:
    yield "# Parity on a GPU"
    yield ""
    yield f"What `make test-gpu` last found (`{command}`): each operation against the reference."
    yield ""
    yield f"{device}; {', '.join(f'{name} {version}' for name, version in versions.items())}."
    yield ""
    yield "| tests | passed | failed | left out |"
    yield "|---|---:|---:|---:|"
    for file, found in sorted(counts.files.items()):
        yield f"| {file} | {found['passed']} | {found['failed']} | {found['skipped']} |"
    yield f"| all | {counts.of('passed')} | {counts.of('failed')} | {counts.of('skipped')} |"
    if counts.reasons:
        yield ""
        yield "Left out, with the reason that the test gives:"
        yield ""
        yield from (f"- {number} × {reason}" for reason, number in counts.reasons.most_common())


def run(arguments: Sequence[str], report: Path) -> int:
    """Run pytest and return its exit code; its output goes to the terminal, test by test, so that a
    run that is cut off has named its failures."""
    named = ("-o", "verbosity_test_cases=1")
    command = [sys.executable, "-m", "pytest", "-q", *named, "-p", "no:randomly", *arguments]
    return subprocess.run([*command, f"--junitxml={report}"], cwd=ROOT, check=False).returncode


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 when everything that ran passed."""
    parser = argparse.ArgumentParser(prog="gpu-tests", description="Parity matrix on this GPU")
    parser.add_argument("--output", type=Path, default=PAGE, help="the page that is written")
    parser.add_argument("tests", nargs="*", default=[PARITY], help="what pytest runs")
    args = parser.parse_args(argv)
    try:
        device = detect_device("auto")
        if not device.is_gpu:
            raise AtomError("torch sees no GPU here; run it on a machine with one")
    except AtomError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        code = run(args.tests, report)
        if not report.is_file() or code == _NO_TESTS:
            print(f"error: pytest ended with {code} and ran nothing", file=sys.stderr)
            return 1
        counts = read_counts(report.read_text(encoding="utf-8"))
    command = " ".join(["pytest", *args.tests])
    args.output.write_text(page(device.name, software_versions(), counts, command), "utf-8")
    print(f"{args.output}: {counts.of('passed')} passed, {counts.of('failed')} failed")
    return code


if __name__ == "__main__":
    sys.exit(main())
