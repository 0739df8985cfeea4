"""`make test-cluster`: prepare a cluster and run the tests that need one, or say why not.

With --long the slow ones (minutes each: faults at every write, every field of the spec) instead,
and every test beside another project's controller. Of each of those the daily run has the quickest:
the controllers are built once and cached by content.

Where no cluster can be had (not root on Linux, and no CLUSTER=current), the reason is the last line
and the exit code 0: everything else has been tested.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from devcluster import target
from devcluster.errors import DevclusterError
from tools.kube import KubeError
from tools.on_cluster import ROOT, prepare_cluster

_MARK = "pytest.mark.cluster"


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests that need a cluster.")
    parser.add_argument("--long", action="store_true", help="the slow ones instead")
    # Of each neighbour one life is in the daily run, and again among all of them in the long one.
    everything = "cluster and (slow or neighbour)"
    wanted = everything if parser.parse_args().long else "cluster and not slow"
    reason = target.why_unusable(os.environ)
    if reason is not None:
        print(f"cluster tests skipped: {reason}", flush=True)
        return 0
    try:
        kube, _ = prepare_cluster()
    except (KubeError, DevclusterError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    # In the order of the files: the end-to-end tests are one life of a deployment after another.
    options = ["-p", "no:cacheprovider", "-p", "no:randomly", "--durations=10"]
    command = [sys.executable, "-m", "pytest", "-m", wanted, *options, *files_with_cluster_tests()]
    return subprocess.run(command, cwd=ROOT, env=kube.environment, check=False).returncode


def files_with_cluster_tests() -> list[str]:
    """List the files with a cluster test in them: to collect all others takes 15 s of a core."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file) for file in files if _MARK in file.read_text(encoding="utf-8")]


if __name__ == "__main__":
    sys.exit(main())
