"""`kubectl atom` on a real API server: found by kubectl, with the user's flags and rights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster.live_cluster import ROOT, LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.operator.builders_operator import atom_deployment
from tests.support.waiting import HANG_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("only_operator")]


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """A folder with the plug-in as an installation puts it into the PATH."""
    script = tmp_path / "kubectl-atom"
    script.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        f"sys.path[:0] = [{str(ROOT / 'operator')!r}, {str(ROOT / 'engine')!r}]\n"
        "from atom_operator.kubectl_atom import main\n"
        "sys.exit(main())\n"
    )
    script.chmod(0o755)
    return tmp_path


def atom(cluster: LiveCluster, plugins: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(
        [str(plugins), str(Path(cluster.kubectl_path).parent), os.environ["PATH"]]
    )
    return subprocess.run(
        [cluster.kubectl_path, "atom", *arguments],
        env={**os.environ, "PATH": path, "KUBECONFIG": cluster.kubeconfig},
        capture_output=True, text=True, timeout=HANG_SECONDS, check=False,
    )  # fmt: skip


def test_status_shows_what_stands_in_the_way(
    namespaced: LiveCluster, plugins: Path, tmp_path: Path
) -> None:
    cluster = namespaced
    manifest = atom_deployment(engine={"image": "localhost/atom-none:0"})
    manifest["metadata"]["namespace"] = cluster.namespace
    cluster.kubectl("apply", "--filename=-", manifest=manifest)
    with operator(cluster, tmp_path / "operator.log"):
        cluster.wait(
            "status with a pod",
            lambda: (
                "Pod/chat-"
                in atom(cluster, plugins, "status", "chat", "-n", cluster.namespace).stdout
            ),
        )
    done = atom(cluster, plugins, "-n", cluster.namespace, "status", "chat")
    assert done.returncode == 1, "not ready"
    assert done.stdout.startswith(f"AtomDeployment {cluster.namespace}/chat")
    for words in (
        "+ Accepted",
        "Deployment/chat  0 of 1 ready",
        "Service/chat",
        "ConfigMap/chat-plan",
    ):
        assert words in done.stdout, done.stdout


def test_gpus_reads_the_nodes(live_cluster: LiveCluster, plugins: Path) -> None:
    done = atom(live_cluster, plugins, "gpus")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("NODE", "no node has AMD devices"))


def test_an_object_that_is_not_there_is_said_with_the_remedy(
    namespaced: LiveCluster, plugins: Path
) -> None:
    done = atom(namespaced, plugins, "status", "nobody", "-n", namespaced.namespace)
    assert done.returncode == 2
    assert "there is no AtomDeployment nobody in namespace" in done.stderr
    done = atom(namespaced, plugins, "top", "nobody", "-n", namespaced.namespace)
    assert (done.returncode, "AtomDeployment nobody" in done.stderr) == (2, True)
    done = atom(namespaced, plugins, "chat", "nobody", "-m", "hi", "-n", namespaced.namespace)
    assert (done.returncode, "AtomDeployment nobody" in done.stderr) == (2, True)
