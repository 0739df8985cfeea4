"""Files of `--save-result`: a report, or a sweep's points with their chart."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atom.entrypoints.bench.charts.svg_chart import svg_chart
from atom.entrypoints.bench.sweep_report import Sweep, sweep_chart, sweep_json
from atom.errors import ConfigError


def save_report(report: dict[str, Any], args: argparse.Namespace) -> None:
    """Write a report, or append it as a line to the file. Raises `ConfigError`."""
    rate = report["request_rate"]
    told = rate if isinstance(rate, str) else f"{rate:g}"
    path = _path(args, f"{told}qps", report)
    if args.append_result:
        _write(path, json.dumps(report) + "\n", mode="a")
    else:
        _write(path, json.dumps(report, indent=2) + "\n")


def save_sweep(sweep: Sweep, args: argparse.Namespace) -> None:
    """Write the points as JSON, and beside them the chart as a picture of the same name."""
    path = _path(args, "sweep", sweep.reports[0])
    _write(path, json.dumps(sweep_json(sweep), indent=2) + "\n")
    _write(path.with_suffix(".svg"), svg_chart(sweep_chart(sweep)))


def _path(args: argparse.Namespace, kind: str, report: Mapping[str, Any]) -> Path:
    model = str(report["model_id"]).rsplit("/", 1)[-1]
    label = args.label or "atom"
    name = args.result_filename or f"{label}-{kind}-{model}-{report['date']}.json"
    return Path(args.result_dir) / name


def _write(path: Path, text: str, *, mode: str = "w") -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error}); check --result-dir") from error
