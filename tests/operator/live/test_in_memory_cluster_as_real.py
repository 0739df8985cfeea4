"""The cluster of the operator's tests and a real one do the same on the same generated scripts."""

from __future__ import annotations

import pytest

from atom_operator.cluster.client import ApiCluster
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.players import (
    InMemoryWorkload,
    LiveWorkload,
    in_memory_writer,
    live_writer,
)
from tests.support.cluster.same_scripts import draw_workload, draw_writes
from tests.support.operator.fake_cluster import FakeCluster
from tests.support.random_search import examples
from tools.kube import KubeError

pytestmark = [pytest.mark.cluster, pytest.mark.whole]


@pytest.mark.parametrize("seed", range(examples(12)))
async def test_writes_have_the_same_outcome(
    seed: int, namespaced: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", namespaced.kubeconfig)
    port = ApiCluster.connect((namespaced.namespace,))
    real = live_writer(port, namespaced)
    double = in_memory_writer(FakeCluster(), namespaced.namespace)
    done = []
    for step in draw_writes(seed):
        done.append(str(step))
        assert await double.play(step) == await real.play(step), "\n".join(done)
    await port.close()


@pytest.mark.parametrize("seed", range(examples(12)))
def test_a_workload_comes_to_the_same_rest(seed: int, namespaced: LiveCluster) -> None:
    double, real = InMemoryWorkload(), LiveWorkload(namespaced)
    done = []
    for step in draw_workload(seed):
        done.append(str(step))
        double.play(step)
        if double.has_a_race():
            return  # one cluster's rest is another's luck: nothing after this can be compared
        real.play(step)
        if step.action == "quota":
            continue
        wanted = double.look()
        seen = [real.look()]

        def same(wanted: object = wanted, seen: list[object] = seen) -> bool:  # type: ignore[assignment]
            seen[:] = [real.look()]
            return seen[0] == wanted

        try:
            namespaced.wait("the same rest", same)
        except KubeError:
            assert seen[0] == wanted, "\n".join(done)
