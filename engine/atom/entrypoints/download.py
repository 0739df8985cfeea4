"""`python -m atom.entrypoints.download`: download a model of the hub, or of a bucket, to a folder,
whole or not at all.

The operator's weights Job runs this program. While it works it answers /health like a starting
engine, so that the same probes apply; its report is its last line of output, and the pod's
termination message. Exit codes: 0 complete, 1 a fault that its one line explains.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from atom.entrypoints.flags.flag_parser import FlagParser
from atom.entrypoints.process.logs import LEVELS, configure_logging, print_error
from atom.entrypoints.process.process_conduct import leave_message, open_standard_streams
from atom.entrypoints.startup.progress_server import ProgressServer
from atom.entrypoints.startup.startup_timeline import DOWNLOADING_WEIGHTS, StartupTimeline
from atom.errors import AtomError, ModelError
from atom.model_source.choose_source import model_source
from atom.model_source.snapshot_folder import (
    Snapshot,
    bytes_lacking,
    bytes_present,
    ensure_snapshot,
)
from atom.model_source.unused_folders import KeptList, Removed, note_use, remove_unused

logger = logging.getLogger(__name__)
_KILLED_BY_TERM = 143
_TOLD_FOLDERS = 10


def main(argv: Sequence[str] | None = None) -> int:
    """Run the download and return the exit code."""
    open_standard_streams()
    args = _parser().parse_args(argv)
    configure_logging(args.log_level)
    # As process 1 of a container it would otherwise ignore the signal.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_KILLED_BY_TERM))
    begun = time.monotonic()
    try:
        with _Watched(args.folder, args.status_port) as watched:
            claim = _Claim(args)
            claim.begin()

            def plan(snapshot: Snapshot) -> None:
                claim.make_room(snapshot)
                watched.expect(snapshot)

            snapshot = ensure_snapshot(
                model_source(args.model), args.model, args.revision, args.folder, plan
            )
    except AtomError as error:
        print_error(error)
        return 1
    done: dict[str, object] = {
        "model": snapshot.model,
        "commit": snapshot.commit,
        "bytes": snapshot.total_bytes,
        "seconds": round(time.monotonic() - begun, 1),
        **claim.report(),
    }
    print(json.dumps(done))
    leave_message(done)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = FlagParser(prog="atom-download", description="Download a model, once")
    parser.add_argument(
        "--model", required=True, help="hub id such as Qwen/Qwen3-8B, or s3://bucket/prefix"
    )
    parser.add_argument(
        "--revision", default=None, help="branch, tag or commit on the hub; default: main"
    )
    parser.add_argument("--folder", required=True, type=Path, help="where its files go")
    parser.add_argument(
        "--prune",
        choices=("Always", "WhenFull"),
        default=None,
        help="remove models that nothing uses from the claim: before each download, or where that "
        "needs their room; needs --claim-root and --as-of",
    )
    parser.add_argument(
        "--claim-root", default=None, type=Path, help="where the claim is; --folder is two below"
    )
    parser.add_argument(
        "--keep", action="append", default=[], help="a folder below --claim-root that is used"
    )
    parser.add_argument(
        "--as-of", type=float, default=None, help="when that was so, in seconds since 1970"
    )
    parser.add_argument(
        "--status-port", type=int, default=None, help="answer /health here; default: nowhere"
    )
    parser.add_argument("--log-level", choices=LEVELS, default="info")
    return parser


class _Claim:
    """Manage the other folders on the folder's claim. ATOM_CLAIM_UID names the owner of its
    downloads; an older image ignores the variable."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._folder: Path = args.folder
        self._owner = os.environ.get("ATOM_CLAIM_UID", "")
        self._when, self._removed = args.prune, list[Removed]()
        self._listed: KeptList | None = None
        if args.prune is None:
            return
        root: Path | None = args.claim_root
        if root is None or args.as_of is None or not self._owner:
            raise ModelError(
                "--prune: needs --claim-root, --as-of and the variable ATOM_CLAIM_UID, so that it "
                "removes only what is the claim's own; set them or leave --prune out"
            )
        if self._folder.parent.parent != root:
            raise ModelError(
                f"--folder {self._folder}: must be two folders below --claim-root {root}"
            )
        self._listed = KeptList(root, self._owner, tuple(args.keep), args.as_of)

    def begin(self) -> None:
        """Mark the folder as used, and remove unused folders if the policy is Always."""
        if self._owner:
            note_use(self._folder, self._owner)
        if self._listed is not None and self._when == "Always":
            self._removed += remove_unused(self._listed, self._folder)

    def make_room(self, snapshot: Snapshot) -> None:
        """Remove unused folders if the snapshot lacks room and the policy is WhenFull."""
        wanted = bytes_lacking(self._folder, snapshot)
        lacks = wanted > shutil.disk_usage(self._folder).free
        if lacks and self._listed is not None and self._when == "WhenFull":
            self._removed += remove_unused(self._listed, self._folder, wanted)

    def report(self) -> dict[str, object]:
        """Report the removed folders; the list is cut because a termination message has 4096
        bytes."""
        if not self._removed:
            return {}
        return {
            "removed": [each.folder for each in self._removed[:_TOLD_FOLDERS]],
            "removedFolders": len(self._removed),
            "removedBytes": sum(each.size_bytes for each in self._removed),
        }


class _Watched:
    """Serves the progress of a folder while it fills: measured when it is asked for."""

    def __init__(self, folder: Path, port: int | None) -> None:
        self._folder = folder
        self._timeline = StartupTimeline()
        self._timeline.note("asking what belongs to it", 0.0)
        self._expected_bytes = 0
        self._server = ProgressServer(self._progress, port) if port is not None else None

    def expect(self, snapshot: Snapshot) -> None:
        """Begin to show progress towards the snapshot's total bytes."""
        logger.info(
            "%s at %s: %d files, %d bytes",
            snapshot.model,
            snapshot.commit,
            len(snapshot.files),
            snapshot.total_bytes,
        )
        self._expected_bytes = snapshot.total_bytes
        self._timeline.weights_bytes = snapshot.total_bytes
        self._timeline.note(DOWNLOADING_WEIGHTS, 0.0)

    def _progress(self) -> dict[str, object]:
        if self._expected_bytes:
            share = min(bytes_present(self._folder) / self._expected_bytes, 1.0)
            self._timeline.note(DOWNLOADING_WEIGHTS, share)
        return self._timeline.progress()

    def __enter__(self) -> _Watched:
        if self._server is not None:
            self._server.start()
            logger.info("progress is told on port %d", self._server.port)
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.stop()


if __name__ == "__main__":
    sys.exit(main())
