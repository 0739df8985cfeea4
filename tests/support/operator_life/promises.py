"""What the documents promise of an AtomDeployment, watched in every moment of a life.

`watch` looks after every round of the controllers and the operator, `judge` when a moment is over
and everybody has seen everything. Knows the cluster as it is, and of the operator its status and
what it wrote; never how it decides.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from atom_operator.domain import Manifest
from tests.support.in_memory_cluster.devices.device_manager import ends_engine
from tests.support.in_memory_cluster.state import is_ready, is_terminal
from tests.support.operator_life.canaries import CanaryPromises, engine_asked_for
from tests.support.operator_life.causes import untold
from tests.support.operator_life.closed import ClosedPromises
from tests.support.operator_life.device_promises import DevicePromises
from tests.support.operator_life.group_promises import GroupPromises
from tests.support.operator_life.groups import group_of, leader_of
from tests.support.operator_life.pairs import PairPromises
from tests.support.operator_life.places import (
    all_serve,
    fits_without,
    groups_are_due,
    strategy_is_due,
)
from tests.support.operator_life.promise import promise
from tests.support.operator_life.rollout_bound import RolloutBound
from tests.support.operator_life.wider import WiderPromises

if TYPE_CHECKING:
    from tests.support.operator_life.life import Life

_REVISION = "serving.atom.dev/revision"
_FAILED = "serving.atom.dev/failed-revision"
# An edited profile waits for its turn or its window, or failed in another AtomDeployment: named
# with it, as the guide of rollouts promises. A change of the spec that waits has it with it.
_PROFILE_WAITS = re.compile(
    r"AtomProfile .*: .*(roll at a time|so no other one takes it|window opens at)"
)
_WAIT_SECONDS = 180.0  # until a wait lasts
_TELL_SECONDS = 60.0  # within which a cause is told: what no event announces is looked at by then
_OWN_WAIT_SECONDS = 240.0  # until nothing may wait any more for what its own old pods hold
_GROUP_SIZE = 2
_LENGTHS, _MEMORIES = ("512", "1024"), ("48Gi", "100Gi", "200Gi")  # that happenings ask for
_MOST_TURNS = 12  # of one condition, by one happening


def _variable(pod: Manifest, name: str) -> str | None:
    """The value that the engine's container of a pod has for a variable."""
    variables = _engine_of(pod["spec"]).get("env") or ()
    found = [item.get("value") for item in variables if item["name"] == name]
    return found[0] if found else None


def _engine_of(pod_spec: Manifest) -> Manifest:
    (engine,) = [item for item in pod_spec["containers"] if item["name"] == "engine"]
    return engine


def _option(pod: Manifest, name: str) -> str:
    args = _engine_of(pod["spec"])["args"]
    return str(args[args.index(name) + 1])


def _memory(pod_spec: Manifest | None) -> str | None:
    """What the engine's container requests."""
    engine = _engine_of(pod_spec) if pod_spec and "containers" in pod_spec else {}
    found: str | None = ((engine.get("resources") or {}).get("requests") or {}).get("memory")
    return found


def _attempt(pod: Manifest) -> str | None:
    """The annotation by which a template asks for other pods."""
    found: str | None = ((pod.get("metadata") or {}).get("annotations") or {}).get("try")
    return found


def _is_asked(found: str | None, asked: str | None, others: tuple[str, ...]) -> bool:
    """Whether a value is the one that is asked for; where none is, whether it is the default."""
    return found == asked if asked is not None else found not in others


class Promises:
    """Of one life."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.story: list[str] = []
        self.serving: dict[str, Manifest] = {}
        self.chosen: tuple[Any, ...] = ()
        self.rolls = False  # groups, since the last choice
        self.turns: dict[str, int] = {}
        self.told: dict[str, str] = {}
        self.blocked: dict[str, float] = {}
        self.untold: dict[str, float] = {}  # causes, and since when no condition tells them
        self.touched = False  # the workload, by hand
        self.canary = CanaryPromises(life)
        self.wider = WiderPromises(life)
        self.pair = PairPromises(life)
        self.closed = ClosedPromises(life)
        self.devices = DevicePromises(life, self._hold)
        self.groups = GroupPromises(life, self._hold)
        self.bound = RolloutBound(life)

    # --- what the life tells -----------------------------------------------------------------

    def happens(self, what: str) -> None:
        self.story.append(f"{self.life.state.time:.0f} s: {what}")
        self.turns.clear()

    def by_hand(self) -> None:
        """Somebody writes into the workload: for its numbers nobody vouches now."""
        self.touched = True

    def upgrades(self) -> None:
        """What serves stays as it is: checked with the moment that follows."""
        self.blocked.clear()

    # --- in every round ----------------------------------------------------------------------

    def watch(self) -> None:
        self.devices.watch()
        self._what_serves_stays()
        self._the_strategy_is_due()
        self._roles_change_in_order()
        self._nothing_begins_while_closed()

    @promise("closed-windows-keep-pods")
    def _nothing_begins_while_closed(self) -> None:
        found = self.closed.broken()
        self._hold(found is None, f"{found}")

    @promise("prefill-pods-go-first", "one-role-serves")
    def _roles_change_in_order(self) -> None:
        found = self.pair.watch()
        self._hold(found is None, f"{found}")

    @promise("serving-pods-stay")
    def _what_serves_stays(self) -> None:
        life = self.life
        before, now = self.serving, {p["metadata"]["uid"]: p for p in self._serving()}
        self.serving = now
        workload = life.workload
        gone = [pod for uid, pod in before.items() if uid not in now]
        if workload is None:
            return
        ours = [
            pod
            for pod in gone
            if not self.is_others_doing(pod) and not self.bound.is_last(workload, pod)
        ]
        floor = self.bound.fewest(workload, len(before), len(gone) - len(ours))
        if not ours or self.touched or len(now) >= floor or self.bound.gives_way(workload):
            return
        words = f"{len(now)} serve, {len(before)} did, {floor} are the fewest that may"
        self._hold(False, f"what serves stays while it can: {words}")

    def _serving(self) -> list[Manifest]:
        """Pods that answer; of a group the leader, while all of it is there."""
        found = self.life.cluster.serving(self.life.name)
        if not self.life.scene.groups:
            return found
        ready = Counter(leader_of(pod) for pod in self.life.pods if is_ready(pod))
        return [
            pod for pod in found if leader_of(pod) is None or ready[leader_of(pod)] == _GROUP_SIZE
        ]

    def is_others_doing(self, pod: Manifest) -> bool:
        """Whether somebody else ended it or one of its group, which falls with any of its pods."""
        return any(map(self._is_ended_by_others, group_of(self.life.state, pod)))

    def _is_ended_by_others(self, pod: Manifest) -> bool:
        """Whether a user did, its node, its kubelet, or its engine by itself on a sick device."""
        state, node = self.life.state, pod["spec"].get("nodeName")
        if pod["metadata"]["uid"] in self.life.disturbed or node in state.lost | state.draining:
            return True
        return is_terminal(pod) or ends_engine(state, pod)

    @promise("no-more-stop-than-needed", "old-pods-stay-if-new-ones-are-rejected")
    def _the_strategy_is_due(self) -> None:
        """A rollout that gives up what serves does so only where nothing else would go on."""
        workload = self.life.workload
        if workload is None:
            return
        revision = workload["metadata"].get("annotations", {}).get(_REVISION)
        chosen = (revision, repr(workload["spec"].get("strategy")))
        of_groups = "strategy" not in workload["spec"]
        if chosen == self.chosen:
            self.rolls = self.rolls and not (of_groups and all_serve(self.life, workload))
            return
        was_rolling, self.rolls, self.chosen = self.rolls, True, chosen
        if of_groups:
            words = groups_are_due(self.life, workload, was_rolling)
            self._hold(words is None, f"{words}")
            return
        rollout = self.life.spec.get("rollout") or {}
        if rollout.get("strategy", "Auto") != "Auto" or self.touched:
            return
        words = strategy_is_due(self.life, workload)
        self._hold(words is None, f"{words}")

    # --- when a moment is over ---------------------------------------------------------------

    def judge(self) -> None:
        operator, parent = self.life.operator, self.life.parent
        if not operator.running or operator.failed or parent is None or "status" not in parent:
            self.untold.clear()
            self.devices.untold.clear()
            self.groups.since = None
            return
        self._nothing_flaps(parent)
        self._ready_is_true(parent)
        self._every_wait_has_its_cause(parent)
        self._nothing_waits_for_its_own()
        self.devices.judge(parent)
        self.groups.judge()
        found = self.canary.broken()
        self._hold(found is None, f"{found}")
        found = self.wider.broken()
        self._hold(found is None, f"{found}")
        found = self.pair.broken()
        self._hold(found is None, f"{found}")

    @promise("conditions-do-not-flap")
    def _nothing_flaps(self, parent: Manifest) -> None:
        for item in parent["status"]["conditions"]:
            before = self.told.get(item["type"])
            if before is not None and before != item["status"]:
                self.turns[item["type"]] = self.turns.get(item["type"], 0) + 1
            self.told[item["type"]] = item["status"]
        if self.life.foreign is not None:
            self.turns.clear()  # pods come and go with each turn of a client that contests them
        for kind, turns in self.turns.items():
            self._hold(turns <= _MOST_TURNS, f"nothing flaps: {kind} turned {turns} times")

    @promise("available-means-answers", "ready-means-all-serve")
    def _ready_is_true(self, parent: Manifest) -> None:
        conditions = {item["type"]: item for item in parent["status"]["conditions"]}
        ready, serving = conditions["Ready"], self._serving()
        answers = bool(serving)
        available = conditions["Available"]["status"] == "True"
        self._hold(available == answers, f"Available={available}, and {len(serving)} pods answer")
        workload = self.life.workload
        wanted = workload["spec"].get("replicas", 1) if workload else 0
        suspended = bool(parent["spec"].get("suspend"))
        good = self._is_as_asked(parent, workload) and len(serving) == wanted and not suspended
        if suspended and parent["status"]["observedGeneration"] == parent["metadata"]["generation"]:
            self._hold(ready["status"] != "True", "it is suspended, and Ready is true")
        if ready["status"] == "True":
            self._hold(
                len(serving) == wanted and workload is not None,
                f"Ready is true, and {len(serving)} of {wanted} answer",
            )
            self._nothing_says_otherwise(conditions)
            sites = {_variable(pod, "SITE") for pod in self.life.pods}
            waits = conditions["Progressing"]
            is_told = _PROFILE_WAITS.search(waits["message"]) or waits["reason"] == "RolloutWaits"
            as_edited = bool(is_told) or sites <= {self.life.site}
            self._hold(as_edited, f"Ready is true, and sites are {sites}")
            self._hold(not self._route_is_refused(), "Ready is true, and its route is refused")
        elif good and self._route_is_refused():
            words = self.life.gateway.words if self.life.gateway else ""
            self._hold(words in ready["message"], f"a route is refused, and Ready says {ready}")
        elif good:
            self._hold(False, f"all answer as asked, and Ready is false: {ready['message']}")

    def _route_is_refused(self) -> bool:
        return self.life.gateway is not None and self.life.gateway.refused is not None

    @promise("conditions-agree")
    def _nothing_says_otherwise(self, conditions: dict[str, Manifest]) -> None:
        """Whoever watches another condition hears the same."""
        for kind, status in (
            ("Degraded", "True"),
            ("ModelLoaded", "False"),
            ("Scheduled", "False"),
        ):
            found = conditions[kind]
            self._hold(
                found["status"] != status,
                f"Ready is true, and {kind}={status} {found['reason']}: {found['message']}",
            )

    def _is_as_asked(self, parent: Manifest, workload: Manifest | None) -> bool:
        """Whether all that runs is what the newest spec asks for, and nothing is left to do."""
        if workload is None or parent["metadata"]["generation"] != parent["status"].get(
            "observedGeneration"
        ):
            return False
        if self.touched or workload["spec"].get("paused"):
            return False
        accepted = [
            item["status"]
            for item in parent["status"]["conditions"]
            if item["type"] in ("Accepted", "CapacityFits")
        ]
        annotations = workload["metadata"]["annotations"]
        if "False" in accepted or _FAILED in annotations:
            return False
        pods = self.life.pods
        size = _GROUP_SIZE if self.life.scene.groups else 1
        if len(pods) != workload["spec"].get("replicas", 1) * size:
            return False
        if {_variable(pod, "SITE") for pod in pods} != {self.life.site}:
            return False  # a profile is edited, and no generation tells it
        same = {pod["metadata"]["annotations"][_REVISION] for pod in pods}
        status = workload.get("status") or {}
        seen = status.get("observedGeneration", workload["metadata"]["generation"])
        return (
            same <= {annotations[_REVISION]}
            and all(map(is_ready, pods))
            and seen == workload["metadata"]["generation"]
            and self._has_asked_pods(pods)
            and self.pair.is_as_asked
        )

    def _has_asked_pods(self, pods: list[Manifest]) -> bool:
        """Whether they are what the spec asks for, in all that happenings change of pods."""
        engine, template = engine_asked_for(self.life.spec), self.life.spec.get("template") or {}
        images = {engine["image"]} if "image" in engine else {*self.life.operator.images.values()}
        length, memory = engine.get("maxModelLen"), _memory(template.get("spec"))
        named = self.life.spec["model"].get("servedName")
        names = {named} if named else {_option(pod, "--served-model-name") for pod in pods}
        return all(
            _engine_of(pod["spec"])["image"] in images
            and _is_asked(_option(pod, "--max-model-len"), length and str(length), _LENGTHS)
            and _is_asked(_memory(pod["spec"]), memory, _MEMORIES)
            and _attempt(pod) == _attempt(template)
            and _option(pod, "--served-model-name") in names
            # A frontend continues streams on another pod, by a secret that all of them mount.
            and ("--handover-secret-file" in _engine_of(pod["spec"])["args"])
            == bool({"frontend", "disaggregation"} & self.life.spec.keys())
            for pod in pods
        )

    @promise("waits-have-their-cause")
    def _every_wait_has_its_cause(self, parent: Manifest) -> None:
        said = " | ".join(
            f"{item['reason']}: {item['message']}" for item in parent["status"]["conditions"]
        )
        time = self.life.state.time
        found = untold(self.life, said, _WAIT_SECONDS)
        # A wait can be old and its cause new: a node that is back lacks something else.
        self.untold = {words: self.untold.get(words, time) for words in found}
        for words, since in self.untold.items():
            self.life.state.look_after(since + _TELL_SECONDS + 1 - time)
            self._hold(
                time - since <= _TELL_SECONDS,
                f"every wait that lasts has its cause in a condition: {words}",
            )

    @promise("no-wait-for-own-old-pods")
    def _nothing_waits_for_its_own(self) -> None:
        """New pods that could start if old ones of their own went do not wait for long."""
        workload, time = self.life.workload, self.life.state.time
        strategy = (self.life.spec.get("rollout") or {}).get("strategy", "Auto")
        waits = (
            workload is not None
            and strategy == "Auto"
            and not workload["spec"].get("paused")
            and "strategy" in workload["spec"]
            and not self.touched
            and fits_without(self.life, workload)
        )
        if not waits or workload is None:
            self.blocked.clear()
            return
        revision = workload["metadata"]["annotations"][_REVISION]
        since = self.blocked.setdefault(revision, time)
        self.life.state.look_after(since + _OWN_WAIT_SECONDS + 1 - time)
        self._hold(
            time - since <= _OWN_WAIT_SECONDS,
            f"nothing waits for what only its own old pods hold: for {time - since:.0f} s "
            f"{revision} has, by {workload['spec']['strategy']}",
        )

    # --- the end -----------------------------------------------------------------------------

    @promise("faults-leave-nothing-behind")
    def judge_the_end(self) -> None:
        """Once nobody disturbs it any more, it serves what is asked for."""
        parent, workload = self.life.parent, self.life.workload
        self._hold(parent is not None and workload is not None, "at the end it exists")
        if parent is None or workload is None:
            return
        ready = next(i for i in parent["status"]["conditions"] if i["type"] == "Ready")
        wanted, serving = workload["spec"].get("replicas", 1), len(self._serving())
        if not self.touched and "autoscaling" not in self.life.spec:
            self._hold(wanted == self.life.spec["replicas"], f"{wanted} replicas at the end")
        self._hold(serving == wanted, f"{serving} of {wanted} serve at the end: {ready}")
        self._hold(ready["status"] == "True", f"at the end Ready says {ready}")
        found = self.pair.at_the_end()
        self._hold(found is None, f"{found}")

    @promise("no-writes-at-rest")
    def judge_the_rest(self, writes: list[str]) -> None:
        """Nothing is written while nothing happens."""
        self._hold(not writes, f"no writes at rest: {writes}")

    def _hold(self, holds: bool, words: str) -> None:
        if not holds:
            story = "\n  ".join(self.story)
            time = self.life.state.time
            raise AssertionError(f"{words}\n  at {time:.0f} s of\n  {self.life.scene}\n  {story}")
