"""Degraded names every different fault that keeps pods from serving, of new pods first."""

from __future__ import annotations

import itertools

import pytest

from atom_operator.domain import DeploymentState, Observed, PodState
from atom_operator.domain.observed import PodHealth
from atom_operator.status.pods.failing_pods import failing_verdict

NEW, OLD = "new", "old"
FAULTS = ("no such image", "no such model", "device lost")
RUNNING = DeploymentState(3, 4, 1, 2, 2, NEW)


def pod(number: int, revision: str, problem: str | None, *, ready: bool = False) -> PodState:
    return PodState(f"chat-{number}", ready, revision=revision, health=PodHealth(problem))


def message(*pods: PodState) -> str | None:
    found = failing_verdict(Observed({}, RUNNING, pods), RUNNING)
    return found.message if found is not None else None


@pytest.mark.parametrize("problems", itertools.product((None, *FAULTS), repeat=3))
def test_every_fault_is_told_once(problems: tuple[str | None, ...]) -> None:
    told = message(*(pod(number, OLD, each) for number, each in enumerate(problems)))
    assert (told is None) == (set(problems) == {None})
    for fault in FAULTS:
        assert (told or "").count(fault) == (fault in problems)


def test_the_newest_revision_s_fault_comes_first() -> None:
    told = message(pod(1, OLD, "device lost"), pod(2, NEW, "no such image"))
    assert told == "pod chat-2: no such image; pod chat-1: device lost"


def test_pods_that_fail_alike_and_more_faults_than_are_told_are_counted() -> None:
    alike = message(pod(1, NEW, "no such image"), pod(2, NEW, "no such image"))
    assert alike == "pod chat-1: no such image (and 1 more pods)"
    many = message(*(pod(number, NEW, f"fault {number}") for number in range(5)))
    assert many is not None
    assert many.endswith("; 2 more pods fail")


def test_what_serves_or_waits_without_a_fault_is_not_told() -> None:
    assert message(pod(1, NEW, "ended once", ready=True), pod(2, NEW, None)) is None
