"""`make test-cluster`: prepare a cluster and run the tests that need one, or say why not.

With --all the tests that this leaves out: those marked `whole`, and the quickest beside each other
project's controller; the controllers are built once and cached by content. With --long the slow
ones (minutes each: faults at every write, every field of the spec) instead, and every test beside
another project's controller.

If no cluster can be had (not root on Linux, and no CLUSTER=current), the reason is the last line
and the exit code 0: everything else has been tested. The run's record has it as a skip.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from devcluster import target
from devcluster.errors import DevclusterError
from tests.support.suite_record import RECORD_VARIABLE, RunRecord
from tools.kube import KubeError
from tools.on_cluster import ROOT, prepare_cluster
from tools.suite.parts import Suite

_MARK = "pytest.mark.cluster"


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests that need a cluster.")
    wanted = parser.add_mutually_exclusive_group()
    wanted.add_argument("--test", action="store_true", help="those of every commit (the default)")
    wanted.add_argument("--all", action="store_true", help="those that --test leaves out")
    wanted.add_argument("--long", action="store_true", help="the slow ones instead")
    marks = _marks(parser.parse_args())
    reason = target.why_unusable(os.environ)
    if reason is not None:
        print(f"cluster tests skipped: {reason}", flush=True)
        _record_skip(reason)
        return 0
    try:
        kube, _ = prepare_cluster()
    except (KubeError, DevclusterError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    # In the order of the files: the end-to-end tests are one life of a deployment after another.
    options = ["-p", "no:cacheprovider", "-p", "no:randomly", "--durations=10"]
    command = [sys.executable, "-m", "pytest", "-m", marks, *options, *files_with_cluster_tests()]
    return subprocess.run(command, cwd=ROOT, env=kube.environment, check=False).returncode


def _marks(args: argparse.Namespace) -> str:
    if args.long:
        return "cluster and (slow or neighbour)"
    return (Suite.ALL if args.all else Suite.TEST).cluster_marks


def _record_skip(reason: str) -> None:
    """Tell the suite that runs this that a whole part of the proofs is missing."""
    file = os.environ.get(RECORD_VARIABLE)
    if file:
        RunRecord(skipped=[("tests -m cluster", f"no cluster: {reason}")]).write(Path(file))


def files_with_cluster_tests() -> list[str]:
    """List the files with a cluster test in them: to collect all others takes 15 s of a core."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file) for file in files if _MARK in file.read_text(encoding="utf-8")]


if __name__ == "__main__":
    sys.exit(main())
