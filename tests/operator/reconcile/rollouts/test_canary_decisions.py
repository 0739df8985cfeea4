"""A decision about a canary is about one change; beside another it does nothing, and says so."""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from atom_operator.children.canary import content_digest
from atom_operator.domain import ATOM_DEPLOYMENT, EVENT
from atom_operator.domain.canary import (
    Canary,
    CanaryAsked,
    CanaryPhase,
    CanarySeen,
    CanaryState,
    CanaryStep,
    PodsSeen,
)
from atom_operator.plan.canary.steps import next_state
from atom_operator.status.canary import canary_status, state_of
from tests.operator.reconcile.rollouts.test_canary import CHANGE, MINUTE, Story, a_canary
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import NOW, condition

NEXT: dict[str, Any] = {"engine": {"image": "registry.test/atom:3"}}
ACTS = ("Promote", "Undo")


def decided(act: str, *, named: bool) -> Story:
    """A canary about which somebody has decided, and what follows has happened."""
    story = Story(a_canary())
    story.serve()
    change = {"decisionFor": content_digest(CHANGE)} if named else {}
    story.ask({**a_canary(), "decision": act, **change})
    for _ in range(3):
        finish_rollout(story.cluster)
        story.look(after=MINUTE)
    assert story.status["phase"] == ("Promoted" if act == "Promote" else "Undone")
    return story


def kept(story: Story) -> dict[str, Any]:
    """What `kubectl apply` and GitOps controllers leave in the spec beside another change."""
    found: dict[str, Any] = story.cluster.find(ATOM_DEPLOYMENT, "chat")["spec"]["canary"]
    return {name: found[name] for name in ("decision", "decisionFor") if name in found}


@pytest.mark.parametrize(("act", "named"), product(ACTS, (True, False)))
def test_a_decision_does_nothing_for_another_change(act: str, named: bool) -> None:
    story = decided(act, named=named)
    story.ask({**a_canary(), "change": NEXT, **kept(story)})
    for _ in range(4):
        story.look(after=MINUTE)
        finish_rollout(story.cluster)
    assert story.status["phase"] == "Starting"
    assert "3" not in story.image().rpartition(":")[2]
    assert story.image("chat-canary") == "registry.test/atom:3"
    told = condition(story.cluster, "CanaryProgressing")["message"]
    assert f"spec.canary.decision {act} was made for another change" in told
    events = [
        item["message"] for (kind, _, _), item in story.cluster.objects.items() if kind == EVENT
    ]
    assert any(f"decision {act} was made for another change" in text for text in events)
    story.serve()
    story.look(after=2 * MINUTE)
    assert story.status["weight"]


@pytest.mark.parametrize(("act", "named"), product(ACTS, (True, False)))
def test_a_decision_about_the_next_change_is_made_anew(act: str, named: bool) -> None:
    story = decided(act, named=named)
    story.ask({**a_canary(), "change": NEXT, **kept(story)})
    story.serve()
    if named:  # as kubectl atom does
        again = {"decision": act, "decisionFor": content_digest(NEXT)}
    else:  # by hand: it is taken away first
        story.ask({**a_canary(), "change": NEXT})
        again = {"decision": act}
    story.ask({**a_canary(), "change": NEXT, **again})
    assert story.status["phase"] == ("Promoting" if act == "Promote" else "Undone")
    assert "another change" not in condition(story.cluster, "CanaryProgressing")["message"]


def test_another_decision_by_hand_is_about_the_change_that_is_there() -> None:
    """decisionFor belongs to another client and stays behind."""
    story = decided("Promote", named=True)
    left = kept(story)
    story.ask({**a_canary(), "change": NEXT, **left})
    story.serve()
    for _ in range(3):
        story.ask({**a_canary(), "change": NEXT, **left, "decision": "Undo"})
        assert story.status["phase"] == "Undone"


@pytest.mark.parametrize("act", ACTS)
def test_what_is_written_together_belongs_together(act: str) -> None:
    """A repository that has change and decision at once, also where it makes the object anew."""
    story = Story({**a_canary(), "decision": act})
    expected = {"Promote": "Promoted", "Undo": "Undone"}
    assert story.status["phase"] == expected[act]
    assert story.image() == ("registry.test/atom:2" if act == "Promote" else story.image())


def test_a_hold_holds_every_change() -> None:
    story = Story({**a_canary(), "decision": "Hold"})
    story.serve()
    assert story.status["phase"] == "Held"
    story.ask({**a_canary(), "change": NEXT, "decision": "Hold"})
    story.serve()
    story.look(after=timedelta(hours=1))
    assert (story.status["phase"], story.status["step"]) == ("Held", 1)


@pytest.mark.parametrize(
    ("act", "phase"),
    [("Promote", CanaryPhase.PROMOTED), ("Promote", CanaryPhase.PROMOTING), ("Undo", "Undone")],
)
def test_a_status_of_an_older_operator_says_for_which_change_it_was(act: Any, phase: str) -> None:
    before = state_of({"canary": {"change": "old", "phase": phase, "step": 1, "weight": 0}})
    asked = CanaryAsked("new", (CanaryStep(5, 60),), act, None)
    assert next_state(asked, CanarySeen(), before, NOW).phase is CanaryPhase.STARTING
    same = CanaryAsked("old", (CanaryStep(5, 60),), act, None)
    assert next_state(same, CanarySeen(exists=True), before, NOW).phase is not CanaryPhase.STARTING


def test_every_order_of_edits_promotes_only_what_was_decided_about() -> None:
    """Over each sequence of four edits: a change is promoted only where a decision was written
    while it was there, and was not there already in the same words."""
    steps = (CanaryStep(5, 60),)
    edits = [("a", None), ("a", "Promote"), ("b", None), ("b", "Promote")]
    for order in product(edits, repeat=4):
        state: CanaryState | None = None
        made_for: str | None = None
        last: str | None = None
        for change, decision in order:
            if decision is None:
                made_for = None
            elif last is None:
                made_for = change
            last = decision
            asked = CanaryAsked(change, steps, decision, None)  # type: ignore[arg-type]
            seen = CanarySeen(exists=True, known=True, pods=PodsSeen(serve=True, digest=change))
            state = next_state(asked, seen, state, NOW)
            told = state_of({"canary": canary_status_of(state)})
            assert told is not None
            state = told
            promotes = state.phase in (CanaryPhase.PROMOTING, CanaryPhase.PROMOTED)
            assert promotes == (decision is not None and made_for == change), order


def canary_status_of(state: CanaryState) -> dict[str, Any]:
    return canary_status(Canary("chat-canary", state))
