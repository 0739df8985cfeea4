"""What a Job was made from names Secrets, and only the kubelet reads these: nothing tells the
operator that one was put right.

So lives are drawn in which a hub takes another token and the Secret follows later, whichever way
the token comes and whatever the Job does meanwhile. What the condition promises holds in each: the
Job is tried again in ten minutes at most, without a change of the spec, and no more often.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from atom_operator.domain import ATOM_DEPLOYMENT, JOB, Manifest
from tests.operator.lives.test_jobs import HUB, World
from tests.support.in_memory_cluster.kinds import SECRET
from tests.support.in_memory_cluster.secrets import file_of
from tests.support.operator.builders_operator import atom_deployment
from tests.support.random_search import examples

_DAILY = 12
_RETRY_SECONDS = 600
_OTHERWISE_SECONDS = 300  # to start pods, look again and load an engine
_FOLDER = "/run/hub"
_WITHOUT_TOKEN = {name: value for name, value in HUB["model"].items() if name != "tokenSecretRef"}
_REFERENCE = {"secretKeyRef": {"name": "hub", "key": "HF_TOKEN"}}
_ENGINE = {"name": "engine"}
_MOUNTED = {
    "containers": [
        {
            **_ENGINE,
            "env": [{"name": "HF_TOKEN_PATH", "value": f"{_FOLDER}/HF_TOKEN"}],
            "volumeMounts": [{"name": "token", "mountPath": _FOLDER}],
        }
    ],
    "volumes": [{"name": "token", "secret": {"secretName": "hub"}}],
}
# How a Job comes to its token.
WAYS: dict[str, dict[str, Any]] = {
    "tokenSecretRef": {
        "model": {**_WITHOUT_TOKEN, "tokenSecretRef": {"name": "hub", "key": "HF_TOKEN"}}
    },
    "engine.env": {
        "model": _WITHOUT_TOKEN,
        "engine": {**HUB["engine"], "env": [{"name": "HF_TOKEN", "valueFrom": _REFERENCE}]},
    },
    "envFrom": {
        "model": _WITHOUT_TOKEN,
        "template": {
            "spec": {"containers": [{**_ENGINE, "envFrom": [{"secretRef": {"name": "hub"}}]}]}
        },
    },
    "a mounted file": {"model": _WITHOUT_TOKEN, "template": {"spec": _MOUNTED}},
    "jobs.template": {
        "model": _WITHOUT_TOKEN,
        "jobs": {
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "prepare",
                            "env": [{"name": "HF_TOKEN", "valueFrom": _REFERENCE}],
                        }
                    ]
                }
            }
        },
    },
}
STATES = ("old", "absent", "another key")  # of the Secret while the hub wants another token


@dataclass(frozen=True, slots=True)
class Rotation:
    """A hub that takes another token `revoked` seconds after the start, and a Secret that has it so
    much later."""

    way: str
    state: str
    job_seconds: float
    revoked: int
    later: int

    @classmethod
    def draw(cls, seed: int) -> Rotation:
        draws = random.Random(seed)
        return cls(
            draws.choice(tuple(WAYS)),
            draws.choice(STATES),
            draws.choice((2.0, 30.0, 400.0)),
            draws.choice((0, 1, 10, 35, 300, 500)),
            draws.choice((1, 20, 100, 400, 700, 3000)),
        )


class Hub:
    """Lets in who has the token that counts when the work is done."""

    def __init__(self, world: World) -> None:
        self.valid = "first"
        self._kubelets, self._state = world.cluster.kubelets, world.cluster.state
        self._kubelets.run = self.answer
        self.jobs: set[str] = set()  # that a pod of theirs has asked

    def answer(self, pod: Manifest) -> tuple[int, str]:
        self.jobs.add(pod["metadata"]["ownerReferences"][0]["uid"])
        environment = self._kubelets.environment(pod)
        file = file_of(self._state, pod, f"{_FOLDER}/HF_TOKEN")
        token = environment.get("HF_TOKEN", file)
        return (0, "") if token == self.valid else (1, "error: the hub takes no such token (401)")

    def rotate(self, token: str) -> None:
        self.valid = token


def put(world: World, **data: str) -> None:
    """Make the Secret hold this."""
    take(world)
    world.cluster.state.create(SECRET, {"metadata": {"name": "hub"}, "data": data})


def take(world: World) -> None:
    """Remove the Secret."""
    for secret in world.cluster.state.all(SECRET):
        world.cluster.state.remove(SECRET, secret)


def spoil(world: World, state: str) -> None:
    """Leave the Secret as it is while the hub wants another token."""
    if state == "absent":
        take(world)
    elif state == "another key":
        put(world, OTHER="second")


def is_fetched(world: World) -> bool:
    return "Complete" in [
        item["type"] for item in world.job.get("status", {}).get("conditions", ())
    ]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(examples(_DAILY)))
def test_a_job_is_tried_again_once_its_secret_is_right(seed: int) -> None:
    drawn = Rotation.draw(seed)
    world = World(**WAYS[drawn.way])
    put(world, HF_TOKEN="first")
    hub = Hub(world)
    world.cluster.kubelets.job_seconds = drawn.job_seconds
    if drawn.revoked:
        world.cluster.advance(drawn.revoked)
    fetched = is_fetched(world) if world.cluster.api.names(JOB) else False
    hub.rotate("second")
    spoil(world, drawn.state)
    before = world.cluster.api.names(JOB) and world.job["metadata"]["uid"]
    world.cluster.advance(drawn.later)
    generation = world.cluster.api.find(ATOM_DEPLOYMENT, "chat")["metadata"]["generation"]
    put(world, HF_TOKEN="second")
    world.cluster.advance(_RETRY_SECONDS + _OTHERWISE_SECONDS + 2 * drawn.job_seconds)
    assert is_fetched(world), (drawn, world.told("Degraded"))
    assert world.told("Ready")["status"] == "True", (drawn, world.told("Ready"))
    assert world.told("Degraded")["status"] == "False", drawn
    after = world.cluster.api.find(ATOM_DEPLOYMENT, "chat")["metadata"]["generation"]
    assert after == generation, "by itself"
    assert not fetched or world.job["metadata"]["uid"] == before, "what is fetched stays fetched"
    assert len(hub.jobs) <= 2 + drawn.later // _RETRY_SECONDS, "and not for ever anew"
    world.operator.close()


def test_while_it_fails_it_says_why_and_when_it_is_tried_again() -> None:
    world = World(**WAYS["tokenSecretRef"])
    put(world, HF_TOKEN="first")
    Hub(world).rotate("second")
    world.cluster.advance(500)
    degraded = world.told("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "DownloadFailed")
    assert "takes no such token (401)" in degraded["message"]
    assert "every ten minutes" in degraded["message"]
    world.operator.close()


@pytest.mark.parametrize("first", ["wrong", "right"])
def test_whose_token_is_wrong_keeps_nobody_from_weights_that_both_ask_for(first: str) -> None:
    """They share a Job by the model's name, and it has the Secret of the one that made it."""
    tokens = {"wrong": "expired", "right": "hub"}
    (second,) = set(tokens) - {first}
    world = World(model={**HUB["model"], "tokenSecretRef": {"name": tokens[first]}})
    hub = Hub(world)
    hub.rotate("given")
    world.cluster.state.create(
        SECRET, {"metadata": {"name": "expired"}, "data": {"token": "expired"}}
    )
    asked = {**HUB, "model": {**HUB["model"], "tokenSecretRef": {"name": tokens[second]}}}
    other = atom_deployment("talk", **asked)
    other["metadata"]["uid"] = "uid-of-talk"
    world.cluster.api.create(ATOM_DEPLOYMENT, other)
    world.cluster.advance(2 * _RETRY_SECONDS + 2 * _OTHERWISE_SECONDS)
    assert is_fetched(world)
    assert world.told("Ready")["status"] == "True"
    world.operator.close()
