"""The flags that record the load of a server, and their values. Argparse and values alone."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atom.errors import ConfigError
from atom.sizing.options.flag_values import count_up_to

_MOST_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """Configure a recording. file: of its lines; None: there is none. most_bytes: of the file."""

    file: Path | None = None
    most_bytes: int = 256 * 2**20


_DEFAULTS = RecordOptions()


def add_record_flags(group: Any) -> None:
    """Add the flags of a recording."""
    group.add_argument(
        "--record",
        type=Path,
        default=None,
        metavar="FILE",
        help="write the load of this server to a new file: lengths, times and hashes of prompts, "
        "and no text; atom bench serve and atom advise read it (default: nothing is recorded)",
    )
    group.add_argument(
        "--record-mib",
        type=count_up_to(_MOST_MIB),
        default=_DEFAULTS.most_bytes // 2**20,
        metavar="N",
        help="MiB of the file, after which the recording ends",
    )


def record_options(args: argparse.Namespace) -> RecordOptions:
    """Return the options of a recording. Raises `ConfigError` where none can be made."""
    file: Path | None = args.record
    if file is None:
        return _DEFAULTS
    if args.api_server_count > 1:
        raise ConfigError(
            "--record: a recording is written by servers of one HTTP process; leave out "
            "--api-server-count, or the file"
        )
    if not file.parent.is_dir():
        raise ConfigError(f"--record {file}: {file.parent} is no folder; make it, or name another")
    if file.is_dir():
        raise ConfigError(f"--record {file}: is a folder; name a file in it, such as load.jsonl")
    return RecordOptions(file=file, most_bytes=args.record_mib * 2**20)
