"""The parts of a suite run with their output, their exit codes and their times."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.suite.__main__ import run_parts
from tools.suite.parts import Part, ending_hangs

# A process of the part's own computes until it has used a twentieth of a second of a core.
_BURN = (
    "import subprocess, sys, time;"
    "code = 'import time\\nwhile time.process_time() < 0.05: pass';"
    "subprocess.run([sys.executable, '-c', code], check=True);"
    "print('burnt'); sys.exit(int(sys.argv[1]))"
)


def test_a_part_has_the_code_output_and_processor_time_of_its_processes(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    parts = [Part(f"ends-{code}", (sys.executable, "-c", _BURN, str(code))) for code in (0, 3)]
    results = run_parts(parts, tmp_path)
    assert [(each.name, each.code) for each in results] == [("ends-0", 0), ("ends-3", 3)]
    assert all(each.seconds.processor >= 0.05 for each in results)
    assert all(each.record is None for each in results)
    printed = capfdbinary.readouterr().out
    assert b"\n== ends-0\nburnt\n" in printed
    assert b"\n== ends-3\nburnt\n" in printed


def test_a_test_that_hangs_ends_its_part_and_is_named(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    file = tmp_path / "test_waits.py"
    file.write_text("import threading\n\ndef test_hangs():\n    threading.Event().wait()\n")
    options = ("-p", "no:cacheprovider", "-p", "no:randomly", *ending_hangs(1))
    command = (sys.executable, "-m", "pytest", f"--rootdir={tmp_path}", *options, str(file))
    (result,) = run_parts([Part("hangs", command)], tmp_path / "records")
    assert result.code != 0
    assert b"in test_hangs" in capfdbinary.readouterr().out
