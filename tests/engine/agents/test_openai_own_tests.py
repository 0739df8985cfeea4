"""openai-python's own tests against the server: as many pass as the documentation says, and the
others fail for its reasons."""

from __future__ import annotations

import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest

from tests.engine.agents.session import check_installed
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.server_process import server_process
from tools.agents import OPENAI_TESTS, openai_tests, python_bin

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs" / "results" / "openai-tests.md"
FILES = (
    "chat/test_completions.py",
    "chat/completions/test_messages.py",
    "test_completions.py",
    "test_models.py",
    "test_responses.py",
    "responses/test_input_items.py",
    "responses/test_input_tokens.py",
)
MODELS = ("gpt-6-astra", "gpt-3.5-turbo-instruct", "model")  # that they ask for
# Of a failure's message, the answer that the page names.
REASONS = {
    r"404 - .*/v1/chat/completions/\w+/messages": "404: chats are not stored",
    r"40[45] - .*/v1/chat/completions": "404 or 405: chats are not stored",
    r"405 - DELETE /v1/models": "405: the server has one model",
    r"405 - POST /v1/responses/compact": "405: there is no such path",
    r"404 - no response": "404: no response of that id is stored",
    r"400 - input: is required": "400: input is required",
    r"400 - (\w+) is not supported": r"400: \1 is not supported",
}


def rows_of(page: str, columns: int) -> list[list[str]]:
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    return [[cell.strip("`") for cell in row] for row in rows if len(row) == columns]


def reason_of(message: str) -> str:
    for pattern, reason in REASONS.items():
        found = re.search(pattern, message)
        if found is not None:
            return found.expand(reason)
    return message


def test_they_pass_and_fail_as_the_documentation_says(tmp_path: Path) -> None:
    check_installed(openai_tests())
    passed: Counter[str] = Counter()
    failed: Counter[tuple[str, str]] = Counter()
    model = make_tiny_checkpoint(tmp_path / "model")
    flags = ["--served-model-name", *MODELS, "--max-model-len", "512"]
    with server_process(model, tmp_path / "log", *flags) as server:
        server.wait_ready()
        for name in FILES:
            for message in messages_of(name, server.url, tmp_path / "report.xml"):
                if message is None:
                    passed[name] += 1
                else:
                    failed[name, reason_of(message)] += 1
    page = PAGE.read_text()
    assert dict(passed) == {name: int(count) for name, count, _ in rows_of(page, 3) if count != "0"}
    assert dict(failed) == {
        (name, answer): int(count) for name, _, answer, count in rows_of(page, 4)
    }


def messages_of(name: str, url: str, report: Path) -> list[str | None]:
    """Of each test of a file why it failed; None if it passed."""
    command = [python_bin(OPENAI_TESTS) / "python", "-m", "pytest", "--quiet", "-o", "addopts="]
    command += ["-p", "no:cacheprovider", f"--junitxml={report}", f"tests/api_resources/{name}"]
    environment = {**os.environ, "TEST_API_BASE_URL": f"{url}/v1"}
    run = subprocess.run(
        command, cwd=openai_tests(), env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    messages: list[str | None] = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        fault = case.find("failure") if case.find("error") is None else case.find("error")
        messages.append(None if fault is None else fault.get("message"))
    return messages
