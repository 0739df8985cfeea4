"""`make test-cluster`: prepare a cluster and run the tests that need one, or say why not.

Where no cluster can be had (not root on Linux, and no CLUSTER=current), the reason is the last line
and the exit code 0: everything else has been tested.
"""

from __future__ import annotations

import os
import subprocess
import sys

from devcluster import target
from devcluster.errors import DevclusterError
from tools.kube import KubeError
from tools.on_cluster import ROOT, prepare_cluster


def main() -> int:
    reason = target.why_unusable(os.environ)
    if reason is not None:
        print(f"cluster tests skipped: {reason}", flush=True)
        return 0
    try:
        kube, _ = prepare_cluster()
    except (KubeError, DevclusterError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    command = [sys.executable, "-m", "pytest", "-m", "cluster", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=ROOT, env=kube.environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
