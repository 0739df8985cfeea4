"""Record how a run of the tests went: seconds by file, failures, and skips with their reasons.

A pytest plugin that `tests/conftest.py` loads. Seconds go to `.cache/test-seconds.json` in the
checkout, by which `make check` knows how long a file takes here. With SUITE_RECORD=FILE the
whole record goes to FILE, too; `tools.suite` sums the records of its parts up.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

RECORD_VARIABLE = "SUITE_RECORD"
_PLUGIN = "suite-record"
ROOT = Path(__file__).resolve().parents[2]
SECONDS_FILE = ROOT / ".cache" / "test-seconds.json"


@dataclass(slots=True)
class RunRecord:
    """One run. Files are as seen from the root, tests by their node ids.

    seconds: of each file, its fixtures included; ran: tests of each file that ran; failed: node
    ids; skipped: node id and reason.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    ran: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def read(cls, file: Path) -> RunRecord:
        told = json.loads(file.read_text(encoding="utf-8"))
        told["skipped"] = [(test, reason) for test, reason in told["skipped"]]
        return cls(**told)

    @classmethod
    def merged(cls, records: Iterable[RunRecord]) -> RunRecord:
        """Add records of several runs up; of a file that two ran, both count."""
        whole = cls()
        for each in records:
            for file in each.seconds:
                whole.add(file, each.seconds[file], each.ran.get(file, 0))
            whole.failed += each.failed
            whole.skipped += each.skipped
        return whole

    def add(self, file: str, seconds: float, ran: int) -> None:
        self.seconds[file] = self.seconds.get(file, 0.0) + seconds
        self.ran[file] = self.ran.get(file, 0) + ran

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    if not config.option.collectonly:
        # Taken out of the environment: programs and runs that tests start are no part of this run.
        file = os.environ.pop(RECORD_VARIABLE, None)
        config.pluginmanager.register(_Recorder(file), _PLUGIN)


def record_beside(config: pytest.Config, name: str) -> dict[str, str]:
    """Return the variable by which a run that a test starts is recorded beside this run."""
    recorder = config.pluginmanager.get_plugin(_PLUGIN)
    file = recorder.file if recorder is not None else None
    return {} if file is None else {RECORD_VARIABLE: f"{file}.{name}"}


class _Recorder:
    def __init__(self, file: str | None) -> None:
        self.file = file
        self._record = RunRecord()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self._record.add(file, report.duration, int(report.when == "call"))
        self._take(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._take(report)

    def pytest_sessionfinish(self) -> None:
        if self.file:
            self._record.write(Path(self.file))
        with contextlib.suppress(OSError):  # a checkout that cannot be written to
            add_seconds(SECONDS_FILE, self._record)

    def _take(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            self._record.failed.append(report.nodeid)
        elif report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            self._record.skipped.append((report.nodeid, reason.removeprefix("Skipped: ")))


def add_seconds(file: Path, record: RunRecord) -> None:
    """Add the seconds of the files of which at least as many tests ran as ever before."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+", encoding="utf-8") as shared:
        fcntl.flock(shared, fcntl.LOCK_EX)  # parts of a suite run side by side
        shared.seek(0)
        known = _parsed(shared.read())
        for name, seconds in record.seconds.items():
            ran = record.ran.get(name, 0)
            if ran and ran >= known.get(name, (0, 0.0))[0]:
                known[name] = (ran, round(seconds, 2))
        shared.truncate(0)
        shared.write(json.dumps(known, indent=0, sort_keys=True))


def read_seconds(file: Path = SECONDS_FILE) -> dict[str, float]:
    """Return the seconds that each test file took when most of its tests ran."""
    try:
        known = _parsed(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {name: seconds for name, (_, seconds) in known.items()}


def _parsed(text: str) -> dict[str, tuple[int, float]]:
    """Read the shared file; one that a killed run left in halves counts as empty."""
    try:
        return {
            name: (int(ran), float(seconds)) for name, (ran, seconds) in json.loads(text).items()
        }
    except (ValueError, AttributeError, TypeError):
        return {}
