"""What many AtomDeployments cost an API server at rest and at a start, in requests.

The operator's requests pass through a proxy that logs them. Without replicas nothing happens by
itself; a short resync makes reconciles frequent. Counts are compared with counts, never with time.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from atom_operator.constants import PLURAL
from atom_operator.handlers.runtime import FOLLOWED
from atom_operator.kinds import OPTIONAL_KINDS, PROVIDERS, Kind
from tests.support.cluster.fault_proxy import FaultProxy, Seen, fault_proxy
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.operator.builders_operator import atom_deployment

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("only_operator")]

_COUNT = 40
_ROUNDS = 3  # reconciles of each, while nothing changes
_WORKERS = 4  # reconciles that may be half done when we look


@dataclass(frozen=True)
class Setting:
    cluster: LiveCluster
    proxy: FaultProxy
    through_proxy: LiveCluster
    metrics_port: int

    @property
    def environment(self) -> dict[str, str]:
        return {
            "ATOM_OPERATOR_RESYNC_SECONDS": "8",
            "ATOM_OPERATOR_METRICS_PORT": str(self.metrics_port),
        }

    def reconciles(self) -> int:
        """Since the operator's start; 0 while it does not answer yet."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics") as answer:
                text = answer.read().decode()
        except urllib.error.URLError:
            return 0
        return sum(int(float(count)) for count in re.findall(r"reconciles_total\{.*\} (\S+)", text))

    def wait_reconciles(self, count: int) -> int:
        def enough() -> int | None:
            found = self.reconciles()
            return found if found >= count else None

        return self.cluster.wait(f"{count} reconciles", enough, seconds=180.0)


@pytest.fixture
def setting(namespaced: LiveCluster, free_port: int, tmp_path: Path) -> Iterator[Setting]:
    with fault_proxy(namespaced.kubeconfig) as proxy:
        kubeconfig = proxy.kubeconfig(tmp_path / "kubeconfig")
        through = replace(namespaced, kubeconfig=kubeconfig)
        yield Setting(namespaced, proxy, through, free_port)


def reported(cluster: LiveCluster) -> bool:
    """Every status is the operator's: objects come with the generation -1, which none has seen."""
    seen = cluster.kubectl(
        "get", "atomd", "--output=jsonpath={.items[*].status.observedGeneration}"
    )
    return seen.stdout.split() == ["1"] * _COUNT


def lists(seen: Sequence[Seen]) -> list[str]:
    """Every list as its path and selector, without those of the AtomDeployments themselves."""
    return [
        f"{one.path}?{one.query.get('labelSelector', '')}"
        for one in seen
        if one.method == "GET" and not one.is_watch and "labelSelector" in one.query
    ]


def is_served(cluster: LiveCluster, kind: Kind) -> bool:
    """Whether the CRD of somebody else's kind is installed here."""
    name = f"{kind.plural}.{kind.group}"
    return cluster.kubectl("get", "crd", name, check=False).returncode == 0


def test_at_rest_a_reconcile_is_one_request_and_a_start_lists_every_kind_once(
    setting: Setting, tmp_path: Path
) -> None:
    cluster, proxy, log = setting.cluster, setting.proxy, tmp_path / "operator.log"
    for number in range(_COUNT):
        manifest = atom_deployment(
            f"many-{number}", namespace=cluster.namespace, replicas=0, engine={"image": "none:0"}
        )
        cluster.kubectl("apply", "--filename=-", manifest=manifest)
    with operator(setting.through_proxy, log, setting.environment):
        cluster.wait("reports", lambda: reported(cluster), seconds=180.0)

    begin = len(proxy.log)
    with operator(setting.through_proxy, log, setting.environment):
        before = setting.wait_reconciles(2 * _COUNT)  # all that the start itself asked for
        start, since = proxy.log[begin:], len(proxy.log)
        after = setting.wait_reconciles(before + _ROUNDS * _COUNT)
        rest = proxy.log[since:]

    watched = {one.path for one in start if one.is_watch}
    followed = [kind for kind in FOLLOWED if kind not in PROVIDERS or is_served(cluster, kind)]
    assert len(watched) == len(followed) + 1, watched  # and the AtomDeployments, by kopf

    of_one = [path for path in lists(start) if "many-" in path]
    assert of_one == [], "a start lists for single AtomDeployments"
    assert len(lists(start)) <= 3 * (len(FOLLOWED) + len(OPTIONAL_KINDS)), lists(start)

    assert [one for one in rest if one.is_write] == []
    assert [path for path in lists(rest) if "many-" in path] == []
    gets = [one for one in rest if one.method == "GET" and f"/{PLURAL}/many-" in one.path]
    assert abs(len(gets) - (after - before)) <= _WORKERS
    others = len(rest) - len(gets)
    assert others < len(gets), "other requests than for the AtomDeployments themselves"
