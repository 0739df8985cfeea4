"""Rules of spec.autoscaling.idle: engines that cannot sleep. Pure; the engine refuses the same."""

from __future__ import annotations

from collections.abc import Iterator

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.constants import Reason
from atom_operator.domain import FieldProblem
from atom_operator.validation.engine_arguments import own_flag

_FIELD = "spec.autoscaling.idle"


def pods_can_sleep(spec: AtomDeploymentSpec) -> Iterator[FieldProblem]:
    """Yield the settings that keep the spec's pods from sleeping, each with its remedy."""
    asked, ranks = spec.autoscaling, spec.parallelism
    if asked is None or asked.idle is None:
        return
    if (ranks.nodes or 1) > 1:
        yield _cannot("an engine over several nodes does not; leave it out, or set nodes to 1")
    elif ranks.expert and (ranks.data or 1) > 1:
        yield _cannot(
            "copies that share experts do not; leave it out, or one of parallelism.expert and "
            "parallelism.data"
        )
    if asked.min_replicas == 0:  # CEL has this rule too
        yield _cannot("pods stay with it; set minReplicas to at least 1, or leave it out")
    flags = {own_flag(word) for word in spec.engine.extra_args or ()}
    for flag in ("--api-server-count", "--no-enable-sleep-mode"):
        if flag in flags:
            yield _cannot(f"an engine with {flag} does not; leave one of them out")


def _cannot(why: str) -> FieldProblem:
    return FieldProblem(_FIELD, f"these pods cannot sleep: {why}", Reason.UNSUPPORTED_BY_ENGINE)
