"""`make test-cluster`: prepare a cluster and run the tests that need one, or say why not.

With --all the tests that this leaves out: those marked `whole`, and the quickest beside each other
project's controller; the controllers are built once and cached by content. With --long the slow
ones (minutes each: faults at every write, every field of the spec) instead, and every test beside
another project's controller.

Files marked `side_by_side` change nothing that others can see: each has namespaces of its own, and
its operators watch those alone. With --test on the embedded cluster they run last, a few at a time,
while the installed operator sleeps; all others run before, one after the other.

If no cluster can be had (not root on Linux, and no CLUSTER=current), the reason is the last line
and the exit code 0: everything else has been tested. The run's record has it as a skip.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from devcluster import target
from devcluster.errors import DevclusterError
from tests.support.suite_record import RECORD_VARIABLE, RunRecord, read_seconds
from tools.kube import Kube, KubeError, wait_until
from tools.on_cluster import ROOT, prepare_cluster
from tools.suite.parts import Suite, ending_hangs

_MARK = "pytest.mark.cluster"
_SIDE_BY_SIDE = re.compile(r"\bmark\.side_by_side\b")
_LANES = 4  # they wait for pods most of the time
_NO_TESTS = 5  # pytest's exit code where the marks select none of a file
# In the order of the files: the end-to-end tests are one life of a deployment after another.
_OPTIONS = (*ending_hangs(), "-p", "no:cacheprovider", "-p", "no:randomly", "--durations=10")
_OPERATORS = "app.kubernetes.io/name=atom-operator"


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests that need a cluster.")
    wanted = parser.add_mutually_exclusive_group()
    wanted.add_argument("--test", action="store_true", help="those of every commit (the default)")
    wanted.add_argument("--all", action="store_true", help="those that --test leaves out")
    wanted.add_argument("--long", action="store_true", help="the slow ones instead")
    args = parser.parse_args()
    marks = _marks(args)
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
    daily = not (args.all or args.long)  # they begin with the installation that lanes rely on
    is_embedded = target.resolve(os.environ).is_embedded
    alone, lanes = split(files_with_cluster_tests(), has_lanes=daily and is_embedded)
    code = _run(kube, marks, alone)
    with _sleeping_operators(kube) if lanes else nullcontext():
        with ThreadPoolExecutor(_LANES) as pool:
            ordered = longest_first(lanes, read_seconds())
            ends = list(pool.map(lambda file: _run_lane(kube, marks, file), ordered))
    return max([code, *ends])


def split(files: Sequence[str], *, has_lanes: bool) -> tuple[list[str], list[str]]:
    """Return the files that run one after the other, and those that run side by side.

    Without lanes all run in turn, as on a user's own cluster: an installed operator there is not
    ours to put to sleep.
    """
    beside = [
        file
        for file in files
        if has_lanes and _SIDE_BY_SIDE.search(Path(file).read_text(encoding="utf-8"))
    ]
    return [file for file in files if file not in beside], beside


def longest_first(files: Sequence[str], seconds: Mapping[str, float]) -> list[str]:
    """Sort files by the seconds that they last took here, so that no long one begins last.

    seconds: of files as seen from the root; files that never ran follow in their order.
    """
    return sorted(files, key=lambda file: -seconds.get(str(Path(file).relative_to(ROOT)), 0.0))


def _run(kube: Kube, marks: str, files: Sequence[str]) -> int:
    command = [sys.executable, "-m", "pytest", "-m", marks, *_OPTIONS, *files]
    code = subprocess.run(command, cwd=ROOT, env=kube.environment, check=False).returncode
    return 0 if code == _NO_TESTS else code


def _run_lane(kube: Kube, marks: str, file: str) -> int:
    """Run one file; its output follows at its end, and its record is one of its own."""
    command = [sys.executable, "-m", "pytest", "-m", marks, *_OPTIONS, file]
    environment = dict(kube.environment)
    record = environment.get(RECORD_VARIABLE)
    if record:
        environment[RECORD_VARIABLE] = f"{record}.{Path(file).stem}"
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    sys.stdout.buffer.write(done.stdout)
    sys.stdout.flush()
    return 0 if done.returncode == _NO_TESTS else done.returncode


@contextmanager
def _sleeping_operators(kube: Kube) -> Iterator[None]:
    """Scale the installed operators to none meanwhile: they would reconcile what the tests make."""
    selector = f"--selector={_OPERATORS}"
    listed = kube.get("deployments", "--all-namespaces", selector)["items"]
    awake = [each for each in listed if each["spec"]["replicas"]]
    for each in awake:
        _scale(kube, each, 0)
    wait_until(
        "end of the installed operators",
        lambda: not kube.get("pods", "--all-namespaces", selector)["items"],
    )
    try:
        yield
    finally:
        for each in awake:
            _scale(kube, each, each["spec"]["replicas"])


def _scale(kube: Kube, deployment: dict[str, Any], replicas: int) -> None:
    meta = deployment["metadata"]
    where = ("--namespace", meta["namespace"], f"deployment/{meta['name']}")
    kube.kubectl("scale", *where, f"--replicas={replicas}")


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
