"""`atom evaluate`: scores of a model by lm-evaluation-harness, through a server.

This module only declares the flags, and is imported by every command of `atom`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from atom.sizing.options.flag_values import count_up_to, whole_number

_COUNT = count_up_to(10**7)


def add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model or server, the tasks, and how they are run."""
    add = parser.add_argument
    add("target", metavar="MODEL|URL", help="a model to serve, or a server's URL")
    add(
        "--tasks", nargs="+", required=True, metavar="TASK",
        help="tasks or groups of lm-evaluation-harness, such as arc_easy gsm8k",
    )  # fmt: skip
    add("--model", default=None, metavar="NAME", help="model or adapter to ask")
    add(
        "--include-path", type=Path, default=None, metavar="FOLDER",
        help="folder with further tasks, as YAML files",
    )  # fmt: skip
    add("--limit", type=_COUNT, default=None, metavar="N", help="first documents of each task")
    add(
        "--num-fewshot", type=whole_number, default=None, metavar="N",
        help="answered examples before each question (default: as the task has it)",
    )  # fmt: skip
    add(
        "--apply-chat-template", action="store_true",
        help="ask through the model's chat template (default: texts as the task has them)",
    )  # fmt: skip
    add(
        "--max-concurrency", type=_COUNT, default=16, metavar="N",
        help="most requests that are open at once",
    )  # fmt: skip
    add("--seed", type=whole_number, default=1234, help="of the examples and of the answers")
    add(
        "--output-file", type=Path, default=None, metavar="FILE",
        help="scores, settings and every answer as JSON",
    )  # fmt: skip
    add("--api-key-file", type=Path, default=None, help="file with the API key")
    add(
        "--serve-arg", action="append", default=[], metavar="FLAG",
        help="flag of `atom serve` for a MODEL, such as --serve-arg=--max-model-len=4096",
    )  # fmt: skip


def run_evaluate(args: argparse.Namespace) -> int:
    """Run the tasks and print their scores. Raises `AtomError`."""
    from atom.entrypoints.evaluate.harness import run

    return run(args)
