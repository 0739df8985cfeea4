"""The flags of stored batches and their values. Argparse and values alone."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atom.sizing.options.flag_values import count_up_to


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """Bound stored batches. folder: of files and batches; None: there are none. storage_bytes: of
    all files; file_bytes: of an uploaded one. most_lines: of a batch; most_files: that are kept,
    and likewise batches. at_once: requests of all batches that are open at a time."""

    folder: Path | None = None
    storage_bytes: int = 4096 * 2**20
    file_bytes: int = 200 * 2**20
    most_lines: int = 50_000
    most_files: int = 1000
    at_once: int = 32


_DEFAULTS = BatchOptions()
_MOST_MIB, _MOST_COUNT, _MOST_AT_ONCE = 2**30, 10**7, 4096


def add_batch_flags(group: Any) -> None:
    """Add the flags of stored batches."""
    add = group.add_argument
    add(
        "--batch-dir",
        type=Path,
        default=None,
        metavar="FOLDER",
        help="folder for /v1/files and /v1/batches, which several servers may share; unfinished "
        "batches continue at another server of it, or at the next start (default: both are off)",
    )
    add(
        "--batch-storage-mib",
        type=count_up_to(_MOST_MIB),
        default=_DEFAULTS.storage_bytes // 2**20,
        metavar="N",
        help="MiB that all files of --batch-dir may take, answers included",
    )
    add(
        "--batch-file-mib",
        type=count_up_to(_MOST_MIB),
        default=_DEFAULTS.file_bytes // 2**20,
        metavar="N",
        help="MiB of one uploaded file",
    )
    add(
        "--batch-max-lines",
        type=count_up_to(_MOST_COUNT),
        default=_DEFAULTS.most_lines,
        metavar="N",
        help="most requests of one batch",
    )
    add(
        "--batch-max-files",
        type=count_up_to(_MOST_COUNT),
        default=_DEFAULTS.most_files,
        metavar="N",
        help="most files that are kept, and most batches",
    )
    add(
        "--batch-concurrency",
        type=count_up_to(_MOST_AT_ONCE),
        default=_DEFAULTS.at_once,
        metavar="N",
        help="most requests of all batches that each HTTP process has open at once; they are "
        "served after those of all other clients",
    )


def batch_options(args: argparse.Namespace) -> BatchOptions:
    return BatchOptions(
        folder=None if args.batch_dir is None else args.batch_dir.absolute(),
        storage_bytes=args.batch_storage_mib * 2**20,
        file_bytes=args.batch_file_mib * 2**20,
        most_lines=args.batch_max_lines,
        most_files=args.batch_max_files,
        at_once=args.batch_concurrency,
    )
