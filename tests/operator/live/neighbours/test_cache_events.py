"""Engine pods say what they have cached to a reader by llm-d's contract, as they are
rendered for a picker by spec.gateway.prefixAware. The picker itself cannot start here, and a
gateway goes on without it; test_prefix_aware.py is about those that run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.support.cluster.cache_reader import read
from tests.support.cluster.envoys.pool_gateway import PoolGateway, pool_gateway
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.prefix_aware import (
    NAME,
    PODS,
    PREFIX_TOKENS,
    READY_SECONDS,
    PrefixAware,
    prefix_aware,
)
from tests.support.cluster.quick_pods import condition
from tests.support.server.envoy_document import DESTINATION
from tests.support.server.repeated_prompts import RepeatedPrompts, beginnings
from tests.support.waiting import HANG_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("only_operator")]

NO_PICKER = {"ATOM_OPERATOR_PICKER_IMAGE": "localhost/no-such-picker:none"}


@dataclass
class Unpicked:
    """A model whose picker cannot start."""

    model: PrefixAware
    gateway: PoolGateway
    prompts: RepeatedPrompts

    def tokens(self, prompt: str) -> list[int]:
        """By the model's Service, as a picker asks for them."""
        body = {"model": NAME, "prompt": prompt}
        url = f"{self.gateway.spread}/v1/completions/render"
        (rendered,) = httpx.post(url, json=body, timeout=HANG_SECONDS).raise_for_status().json()
        return list(rendered["token_ids"])

    def hits_where_it_is_cached(self, known: list[str]) -> int:
        """A reader that starts anew asks each beginning's next request of the pod that has it."""
        pods = self.model.ready()
        told = read(pods, NAME)
        assert {name: each.topics for name, each in told.items()} == {
            name: (f"kv@{name}@{NAME}",) * 2 for name in pods
        }
        hits = 0
        for beginning in known:
            prompt = f"{beginning} once more"
            tokens = self.tokens(prompt)
            best = max(pods, key=lambda name: told[name].cached(tokens))
            found = self._cached(f"{pods[best]}:8000", prompt)
            assert found == told[best].cached(tokens), "what the pod has said"
            hits += found >= PREFIX_TOKENS
        return hits

    def _cached(self, pod: str, prompt: str) -> int:
        body = {"model": NAME, "prompt": prompt, "max_tokens": 1}
        answer = httpx.post(
            f"{self.gateway.addressed}/v1/completions",
            json=body,
            headers={DESTINATION: pod},
            timeout=HANG_SECONDS,
        ).raise_for_status()
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.fixture(scope="module")
def unpicked(
    shared_namespace: LiveCluster, only_operator: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Unpicked]:
    folder = tmp_path_factory.mktemp("unpicked")
    with (
        prefix_aware(shared_namespace, folder, NO_PICKER) as model,
        pool_gateway(shared_namespace, NAME, folder) as gateway,
    ):
        yield Unpicked(model, gateway, RepeatedPrompts(gateway.picked, NAME, PREFIX_TOKENS))


def test_without_its_picker_the_model_serves(unpicked: Unpicked) -> None:
    said = condition(unpicked.model.cluster, "IntegrationsReady")
    assert (said["status"], said["reason"]) == ("False", "PickerNotReady")
    assert condition(unpicked.model.cluster, "Ready")["status"] == "True"
    prompts, known = unpicked.prompts, beginnings("alone")
    prompts.share(known)
    assert len([count for count in unpicked.model.answered().values() if count]) == PODS
    assert prompts.failed == []


def test_a_reader_finds_the_pod_of_each_beginning(unpicked: Unpicked) -> None:
    known = beginnings("told")
    assert unpicked.prompts.hits(known) == 0
    assert unpicked.hits_where_it_is_cached(known) == len(known)


def test_the_successor_of_a_killed_pod_speaks_for_itself(unpicked: Unpicked) -> None:
    model, prompts, known = unpicked.model, unpicked.prompts, beginnings("killed")
    prompts.hits(known)
    gone = next(iter(model.ready()))
    model.kill(gone)

    def asked_and_succeeded() -> bool:
        prompts.hits(known)
        return len(model.ready().keys() - {gone}) == PODS

    model.cluster.wait("its successor", asked_and_succeeded, seconds=READY_SECONDS)
    assert unpicked.hits_where_it_is_cached(known) == len(known)
    assert prompts.failed == []
