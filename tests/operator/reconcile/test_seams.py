"""Whatever comes together, in whatever order: what serves goes on, and nothing is written twice.

Features are tested one by one elsewhere; here hypothesis lets them meet (an autoscaler and a
refused spec, a rollback and a lost node, a new default image in mid-rollout …) and, where an
invariant breaks, names the fewest steps that break it. After every step the operator reconciles
until it is at rest, and the invariants hold.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from atom_operator.cluster.errors import TransientError
from atom_operator.cluster.fleet import FleetReader
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    CONFIG_MAP,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    SERVICE,
    SERVICE_ACCOUNT,
)
from atom_operator.kinds import SCALED_OBJECT
from atom_operator.reconcile.decider import Decider
from atom_operator.reconcile.reconciler import Reconciler
from atom_operator.settings import OperatorSettings
from tests.support.in_memory_cluster.operator_client import renders_as
from tests.support.in_memory_cluster.state import condition_of
from tests.support.operator.builders_operator import KEY, cluster_with, condition
from tests.support.operator.cluster_life import BAD, NAME, ClusterLife, is_ready, parent_of
from tests.support.operator.fake_engines import FakeEngines
from tests.support.operator.faulty_cluster import FaultyCluster, Killed
from tests.support.operator.merged_fields import copied

_PASSES = 4  # until a reconcile writes nothing: the autoscaler comes in a pass of its own
_ROUNDS = 60  # of everything, until the end is reached
GPU = {"type": "amd", "product": "MI300X"}
NODES = {"a": 2, "b": 2}
IMAGES = ("registry.test/atom:1", "registry.test/atom:2", f"registry.test/atom:{BAD}")


class Seams(RuleBasedStateMachine):
    """One AtomDeployment, its cluster, and an operator that may die."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.default = IMAGES[0]
        self.version = 0  # of the operator: each renders pods otherwise

    def teardown(self) -> None:
        try:
            if hasattr(self, "life"):
                self.live_on()
        finally:
            self.loop.close()

    @initialize(gpu=st.booleans(), replicas=st.integers(1, 3), scales=st.booleans())
    def create(self, gpu: bool, replicas: int, scales: bool) -> None:
        accelerator = GPU if gpu else {"type": "cpu"}
        scaling = {"autoscaling": {"method": "HPA", "maxReplicas": 4}} if scales else {}
        self.cluster = cluster_with(accelerator=accelerator, replicas=replicas, **scaling)
        self.cluster.unserved_kinds.add(SCALED_OBJECT)
        self.life = ClusterLife(self.cluster, dict(NODES) if gpu else {})
        self.restart()
        self.come_to_rest()

    # --- what people ask for -----------------------------------------------------------------

    def ask(self, **changes: Any) -> None:
        spec = parent_of(self.cluster)["spec"]
        for name, value in changes.items():
            if value is None:
                spec.pop(name, None)
        kept = {name: value for name, value in changes.items() if value is not None}
        self.cluster.change_spec(ATOM_DEPLOYMENT, NAME, **kept)
        self.come_to_rest()

    def engine(self, **changes: Any) -> None:
        before = parent_of(self.cluster)["spec"].get("engine") or {}
        merged = {**before, **changes}
        self.ask(engine={name: value for name, value in merged.items() if value is not None})

    @rule(replicas=st.integers(0, 4))
    def ask_for_replicas(self, replicas: int) -> None:
        self.ask(replicas=replicas)

    @rule(length=st.sampled_from([512, 1024, None]))
    def ask_for_other_pods(self, length: int | None) -> None:
        self.engine(maxModelLen=length)

    @rule(image=st.sampled_from([*IMAGES, None]))
    def ask_for_an_image(self, image: str | None) -> None:
        self.engine(image=image)

    @rule()
    def ask_for_what_is_refused(self) -> None:
        self.engine(extraArgs=["--model=x"])

    @rule()
    def take_the_refused_back(self) -> None:
        self.engine(extraArgs=None)

    @rule(small=st.booleans())
    def ask_for_a_device(self, small: bool) -> None:
        accelerator = dict(GPU if self.life.nodes else {"type": "cpu"})
        if small:
            accelerator.pop("product", None)
            accelerator["memory"] = "512Mi"
        self.ask(accelerator=accelerator)

    @rule(most=st.sampled_from([None, 2, 4]))
    def ask_for_an_autoscaler(self, most: int | None) -> None:
        self.ask(autoscaling={"method": "HPA", "maxReplicas": most} if most else None)

    @rule(strategy=st.sampled_from(["Auto", "Surge", "InPlace"]), back=st.booleans())
    def ask_for_a_rollout(self, strategy: str, back: bool) -> None:
        self.ask(rollout={"strategy": strategy, "autoRollback": back})

    @rule(asked=st.booleans())
    def ask_for_a_network_policy(self, asked: bool) -> None:
        self.ask(networkPolicy={} if asked else None)

    @rule(note=st.sampled_from([None, "one", "two"]), variable=st.booleans())
    def ask_for_a_template(self, note: str | None, variable: bool) -> None:
        more: dict[str, Any] = {}
        if note is not None:
            more["metadata"] = {"annotations": {"note": note}}
        if variable:
            engine = {"name": "engine", "env": [{"name": "MINE", "value": "1"}]}
            more["spec"] = {"containers": [engine]}
        self.ask(template=more or None)

    @rule(image=st.sampled_from(IMAGES))
    def change_the_default_image(self, image: str) -> None:
        self.default = image
        self.restart()
        self.come_to_rest()

    # --- what the cluster does ---------------------------------------------------------------

    @rule(steps=st.integers(1, 9))
    def time_passes(self, steps: int) -> None:
        for _ in range(steps):
            self.life.step()
            self.come_to_rest()

    @rule(replicas=st.integers(0, 5))
    def autoscale(self, replicas: int) -> None:
        self.life.autoscale(replicas)
        self.come_to_rest()

    @precondition(lambda self: self.life.nodes)
    @rule(name=st.sampled_from(sorted(NODES)), back=st.booleans())
    def lose_or_return_a_node(self, name: str, back: bool) -> None:
        self.life.return_node(name) if back else self.life.lose_node(name)
        self.come_to_rest()

    @rule(pods=st.sampled_from([None, 0, 1, 2]))
    def limit_by_a_quota(self, pods: int | None) -> None:
        self.life.limit_by_a_queue(pods)

    @rule(kind=st.sampled_from([SERVICE, SERVICE_ACCOUNT, DEPLOYMENT]))
    def delete_a_child(self, kind: Any) -> None:
        self.life.delete(kind)
        self.come_to_rest()

    @rule(length=st.sampled_from([512, 1024]))
    def spoil_the_workload(self, length: int) -> None:
        """What somebody put into it makes the next apply invalid."""
        if self.life.deployment is not None:
            self.cluster.spoilt_kinds.add(DEPLOYMENT)
        self.engine(maxModelLen=length)

    @rule(refused=st.booleans())
    def refuse_config_maps(self, refused: bool) -> None:
        if refused:
            self.cluster.refused_kinds[CONFIG_MAP] = "exceeded quota"
        else:
            self.cluster.refused_kinds.clear()
        self.restart()  # what it knows to be as it should be is not written, and so not refused
        self.come_to_rest()

    # --- what happens to the operator --------------------------------------------------------

    @rule()
    def restart(self) -> None:
        self.operator = self.start_operator(self.cluster)

    def start_operator(self, port: ClusterPort) -> Reconciler:
        """A process that remembers nothing; no two of its looks at nodes are of the same time."""
        images: dict[Any, str] = {"amd": self.default, "cpu": self.default}
        engines, time = FakeEngines(), itertools.count(step=1000.0)
        fleet = FleetReader(port, lambda: next(time))
        decider = Decider(port, fleet, engines, OperatorSettings(engine_images=images))
        return Reconciler(port, engines, decider, clock=self.life.state.now)

    @rule()
    def upgrade_the_operator(self) -> None:
        self.version += 1
        self.restart()
        self.come_to_rest()

    @rule(writes=st.integers(1, 4), length=st.sampled_from([256, 768]))
    def die_in_the_middle(self, writes: int, length: int) -> None:
        before = parent_of(self.cluster)["spec"].get("engine") or {}
        self.cluster.change_spec(ATOM_DEPLOYMENT, NAME, engine={**before, "maxModelLen": length})
        dying = self.start_operator(FaultyCluster(self.cluster, kill_after=writes))
        with suppress(Killed, TransientError):
            self.run(dying.reconcile(KEY))
        self.restart()
        self.come_to_rest()

    # --- invariants --------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        self.life.state.time += 1.0  # what is made in one pass is older than what the next makes
        with renders_as(self.version):
            self.loop.run_until_complete(work)

    def come_to_rest(self) -> None:
        """Reconcile until nothing is written; every pass on its own spares what serves."""
        for _ in range(_PASSES):
            before = self.look()
            self.reconcile()
            if self.look() == before:
                return
        raise AssertionError(f"still writing: {self.cluster.writes[-12:]}")

    def reconcile(self) -> None:
        stored, serving = self.life.deployment, len(self.life.serving)
        before = stored["spec"]["replicas"] if stored else None
        written = len(self.cluster.writes)
        self.run(self.operator.reconcile(KEY))
        after = self.life.deployment
        assert "delete Deployment/chat" not in self.cluster.writes[written:]
        assert "delete Service/chat" not in self.cluster.writes[written:]
        assert len(self.life.serving) >= serving, "the Service has lost pods that serve"
        if before is not None and after is not None:
            self.spare_replicas(before, after["spec"]["replicas"])

    def spare_replicas(self, before: int, after: int) -> None:
        """The operator sets the number that the spec has, or leaves it alone."""
        spec = parent_of(self.cluster)["spec"]
        asked = after == spec["replicas"] and "autoscaling" not in spec
        assert after >= before or asked, f"replicas fell from {before} to {after} unasked"

    def look(self) -> dict[Any, str]:
        """The version of everything that the operator writes."""
        return {
            key: str(item["metadata"].get("resourceVersion"))
            for key, item in self.cluster.objects.items()
        }

    def copied_objects(self) -> dict[Any, Any]:
        return {key: copied(item) for key, item in self.cluster.objects.items()}

    @invariant()
    def what_runs_can_be_reached(self) -> None:
        if self.life.deployment is not None and not self.cluster.refused_kinds:
            assert (SERVICE, *KEY) in self.cluster.objects

    @rule()
    def tell_the_status_anew(self) -> None:
        """It holds nothing that is not to be seen elsewhere."""
        told = parent_of(self.cluster)["status"]
        kept = self.copied_objects()
        seen = told["observedGeneration"]
        parent_of(self.cluster)["status"] = {"observedGeneration": seen}
        self.restart()
        for _ in range(2):
            self.reconcile()
        again = parent_of(self.cluster)["status"]
        self.cluster.objects = kept
        for name, value in without_times(told).items():
            assert without_times(again)[name] == value, name

    def live_on(self) -> None:
        """Once nobody disturbs it any more, it ends where it should."""
        self.cluster.refused_kinds.clear()
        self.life.limit_by_a_queue(None)
        for name in NODES:
            self.life.return_node(name)
        for _ in range(_ROUNDS):
            before = self.copied_objects()
            self.come_to_rest()
            self.life.step()
            if self.cluster.objects == before and not self.deadline_runs():
                break
        else:
            raise AssertionError("it does not come to an end")
        self.judge_the_end()
        self.tell_the_status_anew()

    def deadline_runs(self) -> bool:
        """Whether a rollout that does not move will still be told to have failed: it is not at
        its end before, however many minutes nothing else happens."""
        stored = self.life.deployment
        found = condition_of(stored, "Progressing") if stored is not None else None
        if found is None:
            return False
        return found["status"] == "True" and found["reason"] != "NewReplicaSetAvailable"

    def judge_the_end(self) -> None:
        stored, ready = self.life.deployment, condition(self.cluster, "Ready")
        if stored is None:
            assert ready["status"] == "False"
            return
        wanted, serving = stored["spec"]["replicas"], len(self.life.serving)
        good = BAD not in stored["spec"]["template"]["spec"]["containers"][0]["image"]
        if good and wanted <= sum(NODES.values()):
            assert serving == wanted, f"{serving} of {wanted} serve: {ready['message']}"
            if not all(is_ready(item) for item in self.life.pods):
                self.judge_a_spare_pod_that_waits(wanted)
        if ready["status"] == "True":
            assert serving == wanted
        assert good or not (wanted and self.may_go_back()), "it was not rolled back"

    def judge_a_spare_pod_that_waits(self, wanted: int) -> None:
        """There is one for ever only where people asked for it, nothing is free, and the rollout
        may not be taken back; the status says so."""
        waiting = [item for item in self.life.pods if not is_ready(item)]
        assert len(waiting) == 1, "more pods wait than a surge makes"
        assert wanted == sum(self.life.nodes.values()), "a device is free"
        assert "Surge" in [asked.get("strategy") for asked in self.rollouts_asked_for()]
        assert not self.may_go_back(), "it was not rolled back"
        chosen = parent_of(self.cluster)["status"]["rollout"]
        assert "no room for a spare pod" in chosen["reason"]
        assert condition(self.cluster, "Progressing")["reason"] == "DeadlineExceeded"
        assert condition(self.cluster, "Ready")["status"] == "False"

    def may_go_back(self) -> bool:
        """Whether something else was ready, and the spec does not forbid to return to it."""
        allowed = all(one.get("autoRollback") is not False for one in self.rollouts_asked_for())
        return allowed and any("template" in data for data in self.records())

    def rollouts_asked_for(self) -> list[dict[str, Any]]:
        """By the spec, and by those before it that may still be in force."""
        specs = [data["spec"] for data in self.records() if "spec" in data]
        return [spec.get("rollout") or {} for spec in [parent_of(self.cluster)["spec"], *specs]]

    def records(self) -> list[dict[str, Any]]:
        objects = self.cluster.objects.items()
        return [item["data"] for (kind, _, _), item in objects if kind == CONTROLLER_REVISION]


def without_times(status: Mapping[str, Any]) -> dict[str, Any]:
    conditions = {
        item["type"]: (item["status"], item["reason"], item["message"])
        for item in status["conditions"]
    }
    return {**status, **conditions, "conditions": None}


def search(cases: int) -> None:
    run_state_machine_as_test(
        Seams,
        settings=settings(
            max_examples=cases,
            stateful_step_count=10,
            deadline=None,
            derandomize=cases < 1000,  # the short suite finds the same every time
            suppress_health_check=list(HealthCheck),
            phases=(Phase.explicit, Phase.generate, Phase.shrink),
            print_blob=True,
            report_multiple_bugs=False,
            database=None,
        ),
    )


def test_features_meet_in_any_order() -> None:
    """Some 15 lives of a deployment, each of up to dozens of reconciles."""
    search(15)


@pytest.mark.whole
def test_more_features_meet_in_any_order() -> None:
    """Twenty seconds."""
    search(200)


@pytest.mark.parametrize("back", [True, False])
def test_a_spare_pod_that_was_asked_for_finds_no_device(back: bool) -> None:
    """It is rolled back at the deadline or waits, as asked; the old pods serve all the while."""
    seams = Seams()
    try:
        seams.create(gpu=True, replicas=1, scales=False)
        seams.ask_for_a_rollout(strategy="Surge", back=back)
        seams.ask_for_replicas(replicas=4)
        seams.time_passes(steps=1)
        served = {item["metadata"]["name"] for item in seams.life.serving}
        seams.ask_for_a_template(note="one", variable=False)
    finally:
        seams.teardown()
    assert {item["metadata"]["name"] for item in seams.life.serving} == served
    assert len(seams.life.pods) == (4 if back else 5)
    degraded = condition(seams.cluster, "Degraded")
    assert degraded["reason"] == ("RolledBack" if back else "DeadlineExceeded")


def test_a_workload_put_in_its_place_unchanged_is_no_rollout() -> None:
    """An apply and a replacement write a list that both know in one order, so no pod is made
    anew, and a status that was lost is told again the same."""
    seams = Seams()
    try:
        seams.create(gpu=False, replicas=1, scales=False)
        seams.spoil_the_workload(length=512)
        seams.ask_for_a_template(note=None, variable=True)
        seams.spoil_the_workload(length=512)
    finally:
        seams.teardown()


@pytest.mark.slow
def test_features_meet_in_ten_thousand_orders() -> None:
    """A quarter of an hour of one core."""
    search(10_000)
