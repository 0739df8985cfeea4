"""`atom chat`: a conversation with a served model in the terminal.

This module only declares the flags, and is imported by every command of `atom`.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_chat_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model or server, and the options of a conversation."""
    parser.add_argument("target", metavar="MODEL|URL", help="a model to serve, or a server's URL")
    parser.add_argument("--model", default=None, metavar="NAME", help="model or adapter to ask")
    parser.add_argument("--system", default=None, metavar="TEXT", help="system message")
    parser.add_argument("--temperature", type=float, default=None, help="0 is greedy")
    parser.add_argument("--max-tokens", type=int, default=None, help="most tokens of an answer")
    parser.add_argument(
        "--image", type=Path, action="append", default=[], metavar="FILE",
        help="picture that goes with the first message",
    )  # fmt: skip
    parser.add_argument("--api-key-file", type=Path, default=None, help="file with the API key")
    parser.add_argument(
        "--serve-arg", action="append", default=[], metavar="FLAG",
        help="flag of `atom serve` for a MODEL, such as --serve-arg=--max-model-len=4096",
    )  # fmt: skip


def run_chat(args: argparse.Namespace) -> int:
    """Talk until the end of the input. Raises `AtomError` if there is no server, or no model."""
    from atom.entrypoints.chat.command import run

    return run(args)
