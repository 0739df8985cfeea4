"""Prometheus' own checker; tests that need it are skipped, with the reason, where it lacks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.errors import DevclusterError
from devcluster.programs.promtool import ensure_promtool
from devcluster.settings import read_settings

COLON = "metric names should not contain ':'"  # that of every metric of the upstream engine does


def promtool(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """One promtool command with `text` on its standard input, to its end."""
    try:
        program = ensure_promtool(read_settings(os.environ))
    except DevclusterError as error:
        pytest.skip(f"no promtool: {error}")
    command = [str(program), *words]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=60, check=False
    )


def metric_problems(text: str) -> set[tuple[str, str]]:
    """(metric, what is wrong with it) of a scrape; all that `promtool check metrics` says."""
    done = promtool("check", "metrics", text=text)
    problems = set()
    for line in (done.stdout + done.stderr).splitlines():
        metric, space, problem = line.partition(" ")
        assert space, line
        assert not line.startswith("error while linting"), f"not Prometheus' text format: {line}"
        problems.add((metric, problem))
    assert (done.returncode != 0) == bool(problems), done
    return problems


def assert_rules(rules: list[dict[str, Any]], folder: Path) -> None:
    """`promtool check rules` takes these rules: their queries parse, their templates too."""
    assert rules
    file = folder / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "test", "rules": rules}]}))
    done = promtool("check", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout
