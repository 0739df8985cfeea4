"""Prometheus' own checker; tests that need it are skipped, with the reason, where it lacks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.errors import DevclusterError
from devcluster.programs.promtool import ensure_promtool
from devcluster.settings import read_settings
from tests.support.waiting import HANG_SECONDS

COLON = "metric names should not contain ':'"  # that of every metric of the upstream engine does


def promtool(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """One promtool command with `text` on its standard input, to its end."""
    try:
        program = ensure_promtool(read_settings(os.environ))
    except DevclusterError as error:
        pytest.skip(f"no promtool: {error}")
    command = [str(program), *words]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
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


@dataclass(frozen=True, slots=True)
class Story:
    """Series of an hour, with a value for each minute, and the alerts that fire at its end. series:
    from the series to its values as promtool writes them, such as 0+10x60."""

    series: Mapping[str, str]
    firing: Set[str]


def assert_alerts(rules: list[dict[str, Any]], stories: list[Story], folder: Path) -> None:
    """Prometheus evaluates these rules over each story, and these alerts fire."""
    (folder / "rules.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "test", "rules": rules}]})
    )
    firing = 'count by (alertname) (ALERTS{alertstate="firing"}) > bool 0'
    tests = [
        {
            "name": f"story {number}",
            "interval": "1m",
            "input_series": [
                {"series": name, "values": values} for name, values in story.series.items()
            ],
            "promql_expr_test": [
                {
                    "expr": firing,
                    "eval_time": "1h",
                    "exp_samples": [
                        {"labels": f'{{alertname="{name}"}}', "value": 1}
                        for name in sorted(story.firing)
                    ],
                }
            ],
        }
        for number, story in enumerate(stories)
    ]
    written = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (folder / "stories.yaml").write_text(yaml.safe_dump(written))
    done = promtool("test", "rules", str(folder / "stories.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr
