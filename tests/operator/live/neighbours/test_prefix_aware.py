"""What spec.gateway.prefixAware renders, run as it is rendered: the picker's pod as its account,
engine pods that it reads, and a Gateway that asks it. Requests go where the beginning of their
prompt is cached, also after the picker or an engine pod has died. One life, in order, of each
project's picker.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from atom_operator.integration_values import PickerKind
from devcluster import target
from tests.support.cluster import neighbours, picker_image
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.cluster.pool_gateway import PoolGateway, pool_gateway
from tests.support.cluster.quick_pods import condition, engine_image, wait_ready
from tests.support.server.repeated_prompts import SHARE, RepeatedPrompts, beginnings
from tests.support.waiting import HANG_SECONDS
from tools.kube import Kube
from tools.on_cluster import choose_images, demo_manifest, offer_folders

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.neighbour,
    pytest.mark.slow,
    pytest.mark.usefixtures("only_operator"),
]

NAME, PODS = "chat", 3
PREFIX_TOKENS = 112  # of each beginning in whole blocks, by the demo model's tokenizer
READY_SECONDS = 400.0
ENGINES = f"serving.atom.dev/deployment={NAME}"
PICKERS = "app.kubernetes.io/component=endpoint-picker"
KILL_SERVER = """
import os, pathlib, signal
for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    words = entry.read_bytes().split(b"\\0")
    if b"atom.entrypoints.openai_server" in words and entry.parent.name != "1":
        os.kill(int(entry.parent.name), signal.SIGKILL)
"""


@dataclass
class Served:
    """A model whose pods a picker chooses from. `reads_events`: it knows what they have cached;
    else it remembers what it has sent them."""

    cluster: LiveCluster
    gateway: PoolGateway
    prompts: RepeatedPrompts
    reads_events: bool
    operator_log: Path

    def pods(self, selector: str = ENGINES) -> dict[str, dict[str, Any]]:
        text = self.cluster.kubectl("get", "pods", f"--selector={selector}", "-o", "json").stdout
        return {item["metadata"]["name"]: item for item in json.loads(text)["items"]}

    def ready(self, selector: str = ENGINES) -> set[str]:
        return {name for name, pod in self.pods(selector).items() if is_ready(pod)}

    def answered(self) -> dict[str, float]:
        """How many requests each engine pod has answered."""
        return {name: self._finished(name) for name in self.pods()}

    def _finished(self, pod: str) -> float:
        path = f"/api/v1/namespaces/{self.cluster.namespace}/pods/{pod}:8000/proxy/metrics"
        text = self.cluster.kubectl("get", "--raw", path).stdout
        found = re.findall(r"^atom:requests_finished_total.* (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))

    def picker_log(self) -> str:
        """Of those that run."""
        options = (f"--selector={PICKERS}", "--tail=-1")
        return self.cluster.kubectl("logs", *options).stdout

    def chosen_by_the_picker(self) -> bool:
        """Ask what goes to no pod that the picker has not named."""
        body = {"model": NAME, "prompt": "to whom?", "max_tokens": 1}
        url = f"{self.gateway.named}/v1/completions"
        with contextlib.suppress(httpx.TransportError):
            return httpx.post(url, json=body, timeout=HANG_SECONDS).status_code == 200
        return False

    def wait_for_replays(self, count: int) -> None:
        """Until a picker that reads events has those of so many pods from their beginning."""
        if self.reads_events:
            self.cluster.wait(
                f"events of {count} pods",
                lambda: self.picker_log().count("Replay complete") >= count,
            )

    def ask_until(self, what: str, look: Callable[[], bool]) -> None:
        """Requests go on meanwhile, of which none may fail."""
        known = beginnings("meanwhile")

        def asked_and_so() -> bool:
            self.prompts.hits(known)
            return look()

        self.cluster.wait(what, asked_and_so, seconds=READY_SECONDS)


def is_ready(pod: dict[str, Any]) -> bool:
    found = pod.get("status", {}).get("conditions", ())
    return any((item["type"], item["status"]) == ("Ready", "True") for item in found)


@pytest.fixture(scope="module", params=list(PickerKind))
def served(
    shared_namespace: LiveCluster,
    only_operator: None,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Served]:
    cluster, kind = shared_namespace, request.param
    picker_image.load(kind)
    engine_image(cluster)  # or a skip with the reason
    images = choose_images(target.resolve(os.environ), os.environ)
    offer_folders(Kube(target.resolve(os.environ), cluster.namespace), images)
    folder = tmp_path_factory.mktemp("served")
    log = folder / "operator.log"
    with operator(cluster, log, {"ATOM_OPERATOR_PICKER_KIND": kind}):
        neighbours.apply(cluster, model(demo_manifest(images)))
        wait_ready(cluster, READY_SECONDS)
        cluster.wait(
            "the picker", lambda: condition(cluster, "IntegrationsReady")["status"] == "True"
        )
        with pool_gateway(cluster, NAME, folder) as gateway:
            prompts = RepeatedPrompts(gateway.picked, NAME, PREFIX_TOKENS)
            found = Served(cluster, gateway, prompts, kind is PickerKind.LLM_D, log)
            cluster.wait("a choice", found.chosen_by_the_picker)
            found.wait_for_replays(PODS)
            yield found
        cluster.kubectl("delete", "atomd", NAME)
        cluster.wait("the end of its pods", lambda: not found.pods() and not found.pods(PICKERS))


def model(demo: str) -> dict[str, Any]:
    """The demo's, small, and with one thread for each pod."""
    made: dict[str, Any] = yaml.safe_load(demo)
    made["metadata"]["name"] = NAME
    spec = made["spec"]
    spec["model"]["servedName"] = NAME
    spec["accelerator"]["memory"] = "2Gi"
    threads = {"name": "OMP_NUM_THREADS", "value": "1"}
    spec["engine"].update({"maxModelLen": 256, "maxNumSeqs": 4, "env": [threads]})
    gateway = {"prefixAware": True}
    return {**made, "spec": {**spec, "replicas": PODS, "gateway": gateway, "networkPolicy": {}}}


def test_the_picker_has_all_rights_that_it_asks_for(served: Served) -> None:
    (pod,) = served.pods(PICKERS).values()
    (container,) = pod["status"]["containerStatuses"]
    assert container["restartCount"] == 0
    assert re.findall(r"(?i).*forbidden.*", served.picker_log()) == []
    assert re.findall(r"(?i).*forbidden.*", served.operator_log.read_text()) == []


def test_repeats_go_where_they_are_cached(served: Served) -> None:
    prompts, known = served.prompts, beginnings("first")
    assert prompts.hits(known) == 0
    assert prompts.share(known) >= SHARE
    answered = served.answered()
    assert len(answered) == PODS
    assert max(answered.values()) < prompts.asked  # new ones go to several
    assert prompts.failed == []


def test_without_a_picker_repeats_go_anywhere(served: Served) -> None:
    """What the test before this counts is the picker's work."""
    prompts, known = served.prompts, beginnings("chance")
    anywhere = RepeatedPrompts(served.gateway.spread, NAME, PREFIX_TOKENS)
    anywhere.hits(known)
    assert anywhere.hits(known) / len(known) < SHARE
    assert anywhere.failed == prompts.failed == []


def test_a_picker_pod_that_is_gone_has_a_successor(served: Served) -> None:
    """One that reads events knows what is cached; else it knows after each beginning's next
    request."""
    prompts, known = served.prompts, beginnings("again")
    prompts.hits(known)
    (gone,) = served.pods(PICKERS)
    served.cluster.kubectl("delete", "pod", gone, "--force", "--grace-period=0", "--wait=false")
    served.ask_until(
        "choices of another picker",
        lambda: bool(served.ready(PICKERS) - {gone}) and served.chosen_by_the_picker(),
    )
    served.wait_for_replays(PODS)
    if not served.reads_events:
        prompts.hits(known)
    assert prompts.share(known) >= SHARE
    assert prompts.failed == []


def test_an_engine_pod_that_is_killed_takes_no_request_with_it(served: Served) -> None:
    prompts, known = served.prompts, beginnings("dying")
    prompts.hits(known)
    answered = served.answered()
    gone = max(answered, key=lambda name: answered[name])
    served.cluster.kubectl("delete", "pod", gone, "--force", "--grace-period=0", "--wait=false")
    served.ask_until("its successor", lambda: len(served.ready() - {gone}) == PODS)
    served.wait_for_replays(PODS + 1)
    prompts.hits(known)  # what it had is cached anew
    assert prompts.share(known) >= SHARE
    assert prompts.failed == []


def test_an_engine_that_starts_anew_in_its_pod_has_nothing_cached(served: Served) -> None:
    prompts, known = served.prompts, beginnings("anew")
    prompts.hits(known)
    answered = served.answered()
    name = max(answered, key=lambda name: answered[name])
    served.cluster.kubectl("exec", name, "--", "python3", "-c", KILL_SERVER, check=False)

    def is_back() -> bool:
        pod = served.pods()[name]
        (container,) = pod["status"]["containerStatuses"]
        return container["restartCount"] == 1 and is_ready(pod)

    served.ask_until("the engine in the same pod", is_back)
    prompts.hits(known)
    assert prompts.share(known) >= SHARE
    assert prompts.failed == []
