"""The tests that openai-python and anthropic ship, against the server: as many pass as the
documentation says, and the others fail for its reasons."""

from __future__ import annotations

import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engine.agents.session import check_installed
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.server_process import server_process
from tools.pinned_environments import (
    ANTHROPIC_SOURCE,
    OPENAI_SOURCE,
    SourceDistribution,
    python_bin,
)

pytestmark = pytest.mark.slow

PAGES = Path(__file__).parents[3] / "docs" / "results"


@dataclass(frozen=True, slots=True)
class OwnTests:
    """page: which says what passes, and why the rest does not. models: that the tests ask for.
    base: path of the API below the server. reasons: of a failure's message, the answer that the
    page names."""

    source: SourceDistribution
    page: str
    files: tuple[str, ...]
    models: tuple[str, ...]
    base: str
    reasons: Mapping[str, str]

    def rows(self, columns: int) -> list[list[str]]:
        lines = (PAGES / self.page).read_text().splitlines()
        rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
        return [[cell.strip("`") for cell in row] for row in rows if len(row) == columns]

    def reason_of(self, message: str) -> str:
        for pattern, reason in self.reasons.items():
            found = re.search(pattern, message)
            if found is not None:
                return found.expand(reason)
        return message

    def failures(self, name: str, url: str, report: Path) -> list[str | None]:
        """Of each test of a file why it failed; None if it passed."""
        python = python_bin(self.source.environment) / "python"
        command = [python, "-m", "pytest", "--quiet", "-o", "addopts=", "-p", "no:cacheprovider"]
        run = subprocess.run(
            [*command, f"--junitxml={report}", f"tests/api_resources/{name}"],
            cwd=self.source.folder,
            env={**os.environ, "TEST_API_BASE_URL": f"{url}{self.base}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode in (0, 1), run.stdout + run.stderr
        messages: list[str | None] = []
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            fault = case.find("failure") if case.find("error") is None else case.find("error")
            messages.append(None if fault is None else fault.get("message"))
        return messages


OPENAI = OwnTests(
    source=OPENAI_SOURCE,
    page="openai-tests.md",
    files=(
        "chat/test_completions.py",
        "chat/completions/test_messages.py",
        "test_completions.py",
        "test_models.py",
        "test_responses.py",
        "responses/test_input_items.py",
        "responses/test_input_tokens.py",
    ),
    models=("gpt-6-astra", "gpt-3.5-turbo-instruct", "model"),
    base="/v1",
    reasons={
        r"404 - .*/v1/chat/completions/\w+/messages": "404: chats are not stored",
        r"40[45] - .*/v1/chat/completions": "404 or 405: chats are not stored",
        r"405 - DELETE /v1/models": "405: the server has one model",
        r"405 - POST /v1/responses/compact": "405: there is no such path",
        r"404 - no response": "404: no response of that id is stored",
        r"400 - input: is required": "400: input is required",
        r"400 - (\w+) is not supported": r"400: \1 is not supported",
    },
)
ANTHROPIC = OwnTests(
    source=ANTHROPIC_SOURCE,
    page="anthropic-tests.md",
    files=("test_messages.py", "test_models.py", "beta/test_messages.py", "beta/test_models.py"),
    models=(
        "claude-opus-5-5",
        "model_id",
        "claude-mythos-preview",  # of this and the next ones the client warns
        "claude-opus-4-5",
        "claude-opus-4-5-20251101",
        "claude-sonnet-4-5",
        "claude-sonnet-4-5-20250929",
    ),
    base="",
    reasons={r"'message': '(\w+) is not supported": r"400: \1 is not supported"},
)


@pytest.mark.parametrize("own", [OPENAI, ANTHROPIC], ids=["openai", "anthropic"])
def test_they_pass_and_fail_as_the_documentation_says(own: OwnTests, tmp_path: Path) -> None:
    check_installed(own.source.folder)
    passed: Counter[str] = Counter()
    failed: Counter[tuple[str, str]] = Counter()
    model = make_tiny_checkpoint(tmp_path / "model")
    flags = ["--served-model-name", *own.models, "--max-model-len", "512"]
    with server_process(model, tmp_path / "log", *flags) as server:
        server.wait_ready()
        for name in own.files:
            for message in own.failures(name, server.url, tmp_path / "report.xml"):
                if message is None:
                    passed[name] += 1
                else:
                    failed[name, own.reason_of(message)] += 1
    assert dict(passed) == {name: int(count) for name, count, _ in own.rows(3) if count != "0"}
    assert dict(failed) == {(name, answer): int(count) for name, _, answer, count in own.rows(4)}
