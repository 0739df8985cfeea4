"""`make test-gpu` writes what pytest's report says, and nothing where there is no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tools.gpu_tests import main, page, read_counts, run

REPORT = """<testsuites><testsuite tests="4">
<testcase classname="tests.engine.ops.parity.moe.test_experts" name="a"/>
<testcase classname="tests.engine.ops.parity.moe.test_experts" name="b">
<failure message="no"/></testcase>
<testcase classname="tests.engine.ops.parity.test_sampling" name="c"/>
<testcase classname="tests.engine.ops.parity.test_sampling" name="d">
<skipped message="triton: this card multiplies no fp8"/></testcase>
</testsuite></testsuites>"""


def test_the_page_counts_by_file_and_says_why_tests_were_left_out() -> None:
    text = page("NVIDIA H200", {"torch": "2.11", "cuda": "13.0"}, read_counts(REPORT), "pytest x")
    assert "NVIDIA H200; torch 2.11, cuda 13.0." in text
    assert "| ops/parity/moe/test_experts | 1 | 1 | 0 |" in text
    assert "| ops/parity/test_sampling | 1 | 0 | 1 |" in text
    assert "| all | 2 | 1 | 1 |" in text
    assert "- 1 × triton: this card multiplies no fp8" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_without_a_gpu_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--output", str(tmp_path / "page.md")]) == 1
    assert "torch sees no GPU here" in capsys.readouterr().err
    assert not (tmp_path / "page.md").exists()


def test_failures_are_named_as_they_happen(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tests = tmp_path / "test_two.py"
    tests.write_text("def test_right(): pass\n\ndef test_wrong(): assert not 'wrong'\n")
    assert run(["-p", "no:cacheprovider", "-c", "/dev/null", str(tests)], tmp_path / "report.xml")
    ran, _, _ = capfd.readouterr().out.partition("FAILURES")
    assert "::test_right PASSED" in ran
    assert "::test_wrong FAILED" in ran
