"""Scores of SmolLM2-135M by format, from `atom evaluate` and from transformers, on the same
questions.

    python -m benchmarks.accuracy [--count N] [--forms FORM ...]

lm-evaluation-harness asks both (`make agents` installs it); the model is fetched once
(tools.smollm2). A form is a way to hold the weights: float32, bfloat16, int8 and fp8 of a folder in
float32 that transformers wrote from the file, and gguf, the file itself. Each form runs alone, with
one thread. Prints the table of scores; takes about ten minutes of one core.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.resources
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy.tasks import CONTINENTS, SUMS, TASKS, WORDS, write_tasks
from tools import smollm2
from tools.pinned_environments import EVALUATION, python_bin

COUNT = 120  # questions of a task
# A task's score, its name in the table, and whether it is a share.
SCORES = (
    (CONTINENTS, "acc,none", "continent of a city, of four", True),
    (WORDS, "acc,none", "last word of a sentence", True),
    (WORDS, "perplexity,none", "perplexity of the last word", False),
    (SUMS, "exact_match,none", "sum of two numbers", True),
)
_BY_TRANSFORMERS = """
import json, sys, lm_eval
from lm_eval.tasks import TaskManager
model, dtype, tasks, output = sys.argv[1:5]
found = lm_eval.simple_evaluate(
    model="hf", model_args={"pretrained": model, "dtype": dtype}, device="cpu", batch_size=8,
    tasks=sys.argv[5:], task_manager=TaskManager(include_path=tasks),
)
json.dump(found, open(output, "w"), default=str)
"""


@dataclass(frozen=True, slots=True)
class Form:
    """A way to hold the weights. flags: of the server; None: transformers answers, in `dtype`."""

    name: str
    flags: tuple[str, ...] | None = None
    dtype: str = "float32"
    of_file: bool = False

    @property
    def title(self) -> str:
        return self.name if self.flags is not None else f"transformers {self.dtype}"


FORMS = {
    form.name: form
    for form in (
        Form("transformers-float32"),
        Form("float32", ("--dtype=float32",)),
        Form("gguf", ("--dtype=float32",), of_file=True),
        Form("transformers-bfloat16", dtype="bfloat16"),
        Form("bfloat16", ("--dtype=bfloat16",)),
        Form("int8", ("--dtype=float32", "--quantization=int8")),
        Form("fp8", ("--dtype=float32", "--quantization=fp8")),
    )
}


@dataclass(frozen=True, slots=True)
class Found:
    """The scores of a form, and the seconds that they took."""

    form: Form
    results: Mapping[str, Mapping[str, Any]]
    seconds: float


class Run:
    """A folder with the tasks and the model, in which forms are scored."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._file = smollm2.fetch()
        self._model = folder / "model"
        zones = importlib.resources.files("tzdata") / "zoneinfo" / "zone.tab"
        with importlib.resources.as_file(zones) as path:
            write_tasks(folder, path, count)
        model, tokenizer = smollm2.by_transformers(self._file)
        model.save_pretrained(self._model)
        tokenizer.save_pretrained(self._model)

    def score(self, form: Form) -> Found:
        """Score a form in processes of its own. Raises `RuntimeError` with what they said."""
        output = self._folder / f"{form.name}.json"
        if form.flags is None:
            words = ["-c", _BY_TRANSFORMERS, str(self._model), form.dtype, str(self._folder)]
            words += [str(output), *TASKS]
        else:
            served = self._file if form.of_file else self._model
            words = ["-m", "atom.entrypoints.cli", "evaluate", str(served), "--tasks", *TASKS]
            words += ["--include-path", str(self._folder), "--output-file", str(output)]
            flags = ("--device=cpu", "--max-model-len=1024", *form.flags)
            words += [f"--serve-arg={flag}" for flag in flags]
        began = time.monotonic()
        _run(words)
        results = json.loads(output.read_text(encoding="utf-8"))["results"]
        return Found(form, results, time.monotonic() - began)


def _run(words: Sequence[str]) -> None:
    (packages,) = (python_bin(EVALUATION).parent / "lib").glob("python3*/site-packages")
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **offline, "PYTHONPATH": str(packages)}
    done = subprocess.run(
        [sys.executable, *words], env=environment, stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])


def table(found: Sequence[Found], count: int) -> list[str]:
    """Write the scores as lines of Markdown."""
    columns = ["score", *(each.form.title for each in found)]
    lines = [_row(columns), _row(["---", *["---:"] * len(found)])]
    for task, score, title, is_share in SCORES:
        values = [float(each.results[task][score]) for each in found]
        shown = [f"{value:.3f}" if is_share else f"{value:,.2f}" for value in values]
        lines.append(_row([title, *shown]))
    lines.append(_row(["seconds", *(f"{each.seconds:.0f}" for each in found)]))
    names = ("torch", "transformers", "tzdata")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in names]
    versions = ["SmolLM2-135M-Instruct (Q4_1)", *versions, f"Python {platform.python_version()}"]
    return [*lines, "", f"{count} questions a task; {', '.join(versions)}."]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=COUNT, help="questions of a task")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    args = parser.parse_args()
    found: list[Found] = []
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), args.count)
        for name in args.forms:
            found.append(run.score(FORMS[name]))
            print("\n".join(table(found, args.count)), file=sys.stderr)
    print("\n".join(table(found, args.count)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
