"""A Fleet: many AtomDeployments on nodes that they fill, one operator, and defaults of all of them.

Plays what whoever runs the platform changes for many, well or badly, and watches on the way who is
away at a time. Used by tests that judge what became of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from atom_operator.constants import LABEL_PROFILE
from atom_operator.domain import ATOM_DEPLOYMENT, ATOM_PROFILE, NAMESPACE, Manifest, ObjectKey
from atom_operator.integration_values import Site
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.operator_client import OperatorClient
from tests.support.operator.builders_operator import atom_deployment, gpu_node
from tests.support.operator_life.surroundings import GatewayController

SPEC: dict[str, Any] = {
    "model": {"source": "hf://Qwen/Qwen3-8B"},
    "accelerator": {"type": "amd", "product": "MI300X"},
    "parallelism": {"tensor": 8},
    "engine": {},
    "replicas": 1,
}
GOOD_IMAGE, TYPO_IMAGE = "registry.test/atom:2", "registry.test/typo:2"
_START_SECONDS = 300


@dataclass
class Fleet:
    """`models` AtomDeployments of one replica, each of which fills `nodes` of 8 devices."""

    models: int = 6
    nodes: int = 1
    spare: int = 0
    specs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by name, over SPEC
    max_rollouts: int = 1
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    most_away: int = 0
    was_away: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        count = self.models * self.nodes + self.spare
        self.cluster = InMemoryCluster(nodes=[gpu_node(f"node-{n}") for n in range(count)])
        self.api, self.state = self.cluster.api, self.cluster.state
        metadata = {"name": "default", "namespace": ""}
        self.state.create(NAMESPACE, {"metadata": metadata})
        for name, spec in self.profiles.items():
            self.put_profile(name, **spec)
        if "before" in self.profiles:
            self.label_namespace("before")
        self.cluster.clients.append(GatewayController(self.state).sync)
        site = Site(engine_multi_node=True, engine_tensor_parallel=16)
        self.operator = OperatorClient(self.cluster, site=site, max_rollouts=self.max_rollouts)
        for name in self.names:
            spec = {**SPEC, **self.specs.get(name, {})}
            self.state.create(ATOM_DEPLOYMENT, atom_deployment(name, **spec))
        self.cluster.advance(_START_SECONDS)
        self.before = self.uids()
        self.cluster.settled.append(self._watch)

    @property
    def names(self) -> list[str]:
        return [f"m{number}" for number in range(self.models)]

    def key(self, name: str) -> ObjectKey:
        return ObjectKey("default", name)

    def _watch(self) -> None:
        away = {name for name in self.before if not self.cluster.serving(name)}
        self.was_away |= away
        self.most_away = max(self.most_away, len(away))

    # --- what is there -----------------------------------------------------------------------

    def uids(self) -> dict[str, set[str]]:
        """The pods that serve each model that has some."""
        found = {
            name: {pod["metadata"]["uid"] for pod in self.cluster.serving(name)}
            for name in self.names
        }
        return {name: uids for name, uids in found.items() if uids}

    @property
    def replaced(self) -> set[str]:
        """The models whose pods are none of those that served before."""
        now = self.uids()
        return {name for name, uids in self.before.items() if not uids & now.get(name, set())}

    def status(self, name: str) -> Manifest:
        return dict(self.api.objects[ATOM_DEPLOYMENT, "default", name].get("status") or {})

    def said(self, name: str, kind: str) -> dict[str, Any]:
        (found,) = [each for each in self.status(name)["conditions"] if each["type"] == kind]
        return dict(found)

    def waits(self, name: str) -> str:
        """Why its change has not begun; empty where none waits."""
        return str((self.status(name).get("rollout") or {}).get("waits", ""))

    # --- who changes what --------------------------------------------------------------------

    def ask(self, name: str, **changes: Any) -> None:
        self.api.change_spec(ATOM_DEPLOYMENT, name, **changes)

    def put_profile(self, name: str = "default", **spec: Any) -> None:
        """Make an AtomProfile, or make it another."""
        self.api.objects.pop((ATOM_PROFILE, "", name), None)
        self.state.create(ATOM_PROFILE, {"metadata": {"name": name, "namespace": ""}, "spec": spec})

    def label_namespace(self, profile: str) -> None:
        stored = self.api.objects[NAMESPACE, "", "default"]
        stored["metadata"]["labels"] = {LABEL_PROFILE: profile}
        self.api.touch(stored)


@contextmanager
def fleet(**changes: Any) -> Iterator[Fleet]:
    made = Fleet(**changes)
    try:
        yield made
    finally:
        made.operator.close()


def profile(value: str, *, good: bool = True) -> dict[str, Any]:
    """What a profile says: another label of the pods, and where it is not good, an image that is
    not there."""
    containers = [] if good else [{"name": "engine", "image": TYPO_IMAGE}]
    spec = {"spec": {"containers": containers}} if containers else {}
    return {"template": {"metadata": {"labels": {"team": value}}, **spec}}


@dataclass(frozen=True)
class Cause:
    """A change of something that many follow. profiles: that are there before; change: what is
    done; rolls: whether pods are to follow at all."""

    change: Callable[[Fleet, bool], None]
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rolls: bool = True
    told: str = "AtomProfile default ("  # the change, in the words of those that wait


def _edit_profile(made: Fleet, good: bool) -> None:
    made.put_profile(**profile("y", good=good))


def _take_profile_away(made: Fleet, good: bool) -> None:
    """Where it is not good, only the profile had made the pods right."""
    made.api.objects.pop((ATOM_PROFILE, "", "default"))


def _default_image(made: Fleet, good: bool) -> None:
    image = GOOD_IMAGE if good else TYPO_IMAGE
    made.operator.images = {"amd": image, "cpu": image}
    made.operator.restart()


def _label(made: Fleet, good: bool) -> None:
    made.label_namespace("good" if good else "bad")


def _site_defaults(made: Fleet, good: bool) -> None:
    made.operator.site = Site(
        engine_multi_node=True, engine_tensor_parallel=16, defaults=profile("y", good=good)
    )
    made.operator.restart()


def _newer_rendering(made: Fleet, good: bool) -> None:
    made.operator.upgrade()


def _catalogue(made: Fleet, good: bool) -> None:
    """A shape of the model; one that is not good has no place on the devices."""
    config = shape(36 if good else 9000)
    made.put_profile(models=[{"source": SPEC["model"]["source"], "config": config}])


def shape(layers: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "torch_dtype": "bfloat16",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
    }


_NAMED = {"before": profile("x"), "good": profile("y"), "bad": profile("y", good=False)}
CAUSES: dict[str, Cause] = {
    "a profile is edited": Cause(_edit_profile, {"default": profile("x")}),
    "a profile is made": Cause(_edit_profile),
    "a profile is taken away": Cause(
        _take_profile_away, {"default": profile("x")}, told="AtomProfile (none)"
    ),
    "the default image is another": Cause(_default_image, told="default image ("),
    "the namespace names another profile": Cause(_label, _NAMED, told="AtomProfile "),
    "the chart's defaults are others": Cause(_site_defaults),
    "a newer operator renders otherwise": Cause(_newer_rendering, rolls=False),
    "the catalogue knows another shape": Cause(_catalogue, rolls=False),
}
