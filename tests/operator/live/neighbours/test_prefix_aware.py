"""What spec.gateway.prefixAware renders, run as it is rendered: the picker's pod as its account,
engine pods that it reads, and a Gateway that asks it. Requests go where the beginning of their
prompt is cached, also after the picker or an engine pod has died. One life, in order, of each
project's picker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import pytest

from atom_operator.integration_values import PickerKind
from tests.support.cluster import picker_image
from tests.support.cluster.envoys.pool_gateway import PoolGateway, pool_gateway
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.prefix_aware import (
    NAME,
    PICKERS,
    PODS,
    PREFIX_TOKENS,
    READY_SECONDS,
    PrefixAware,
    is_ready,
    prefix_aware,
)
from tests.support.cluster.quick_pods import condition
from tests.support.server.repeated_prompts import SHARE, RepeatedPrompts, beginnings
from tests.support.waiting import HANG_SECONDS

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.neighbour,
    pytest.mark.slow,
    pytest.mark.usefixtures("only_operator"),
]

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

    model: PrefixAware
    gateway: PoolGateway
    prompts: RepeatedPrompts
    reads_events: bool

    def picker_log(self) -> str:
        """Of those that run."""
        options = (f"--selector={PICKERS}", "--tail=-1")
        return self.model.cluster.kubectl("logs", *options).stdout

    def chosen_by_the_picker(self) -> bool:
        """Ask what goes to no pod that the picker has not named."""
        body = {"model": NAME, "prompt": "to whom?", "max_tokens": 1}
        url = f"{self.gateway.named}/v1/completions"
        return httpx.post(url, json=body, timeout=HANG_SECONDS).status_code == 200

    def wait_for_replays(self, count: int) -> None:
        """Until a picker that reads events has those of so many pods from their beginning."""
        if self.reads_events:
            self.model.cluster.wait(
                f"events of {count} pods",
                lambda: self.picker_log().count("Replay complete") >= count,
            )

    def busiest(self) -> str:
        """The pod that has answered most."""
        answered = self.model.answered()
        return max(answered, key=lambda name: answered[name])

    def ask_until(self, what: str, look: Callable[[], bool]) -> None:
        """Requests go on meanwhile, of which none may fail."""
        known = beginnings("meanwhile")

        def asked_and_so() -> bool:
            self.prompts.hits(known)
            return look()

        self.model.cluster.wait(what, asked_and_so, seconds=READY_SECONDS)


@pytest.fixture(scope="module", params=list(PickerKind))
def served(
    shared_namespace: LiveCluster,
    only_operator: None,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Served]:
    cluster, kind = shared_namespace, request.param
    picker_image.load(kind)
    folder = tmp_path_factory.mktemp("served")
    with (
        prefix_aware(cluster, folder, {"ATOM_OPERATOR_PICKER_KIND": kind}) as model,
        pool_gateway(cluster, NAME, folder) as gateway,
    ):
        cluster.wait(
            "the picker", lambda: condition(cluster, "IntegrationsReady").get("status") == "True"
        )
        prompts = RepeatedPrompts(gateway.picked, NAME, PREFIX_TOKENS)
        found = Served(model, gateway, prompts, kind is PickerKind.LLM_D)
        cluster.wait("a choice", found.chosen_by_the_picker)
        found.wait_for_replays(PODS)
        yield found


def test_the_picker_has_all_rights_that_it_asks_for(served: Served) -> None:
    (pod,) = served.model.pods(PICKERS).values()
    (container,) = pod["status"]["containerStatuses"]
    assert container["restartCount"] == 0
    assert re.findall(r"(?i).*forbidden.*", served.picker_log()) == []
    assert re.findall(r"(?i).*forbidden.*", served.model.operator_log.read_text()) == []


def test_repeats_go_where_they_are_cached(served: Served) -> None:
    prompts, known = served.prompts, beginnings("first")
    assert prompts.hits(known) == 0
    assert prompts.share(known) >= SHARE
    answered = served.model.answered()
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
    (gone,) = served.model.pods(PICKERS)
    served.model.kill(gone)
    served.ask_until(
        "choices of another picker",
        lambda: bool(served.model.ready(PICKERS).keys() - {gone}) and served.chosen_by_the_picker(),
    )
    served.wait_for_replays(PODS)
    if not served.reads_events:
        prompts.hits(known)
    assert prompts.share(known) >= SHARE
    assert prompts.failed == []


def test_an_engine_pod_that_is_killed_takes_no_request_with_it(served: Served) -> None:
    prompts, known = served.prompts, beginnings("dying")
    prompts.hits(known)
    gone = served.busiest()
    served.model.kill(gone)
    served.ask_until("its successor", lambda: len(served.model.ready().keys() - {gone}) == PODS)
    served.wait_for_replays(PODS + 1)
    prompts.hits(known)  # what it had is cached anew
    assert prompts.share(known) >= SHARE
    assert prompts.failed == []


def test_an_engine_that_starts_anew_in_its_pod_has_nothing_cached(served: Served) -> None:
    prompts, known = served.prompts, beginnings("anew")
    prompts.hits(known)
    name = served.busiest()
    served.model.cluster.kubectl("exec", name, "--", "python3", "-c", KILL_SERVER, check=False)

    def is_back() -> bool:
        pod = served.model.pods()[name]
        (container,) = pod["status"]["containerStatuses"]
        return container["restartCount"] == 1 and is_ready(pod)

    served.ask_until("the engine in the same pod", is_back)
    prompts.hits(known)
    assert prompts.share(known) >= SHARE
    assert prompts.failed == []
