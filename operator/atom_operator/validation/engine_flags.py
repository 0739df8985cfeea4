"""Judge the flags of spec.engine.extraArgs by the engine's table of flags. Pure.

Every spelling counts: other servers' names of a flag, underscores, and a switch's --no-… form.
"""

from __future__ import annotations

from collections.abc import Iterator

from atom.sizing.options.pod_flags import PodFlag, PodUse, pod_flag
from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.constants import Reason
from atom_operator.domain import FieldProblem
from atom_operator.validation.engine_arguments import own_flag
from atom_operator.validation.pod_folders import batch_folder_problem


def arguments_named(spec: AtomDeploymentSpec, flag: str) -> Iterator[str]:
    """Yield the path of each item of spec.engine.extraArgs that gives `flag`, such as
    --api-server-count."""
    for position, argument in enumerate(spec.engine.extra_args or ()):
        if own_flag(argument) == flag:
            yield _place(position)


def flags_are_free(spec: AtomDeploymentSpec) -> Iterator[FieldProblem]:
    """Yield the arguments that belong to a field or to the operator, or that would break pods."""
    for position, argument in enumerate(spec.engine.extra_args or ()):
        known = pod_flag(own_flag(argument))
        problem = None if known is None else _problem(spec, argument, known)
        if problem is not None:
            yield FieldProblem(_place(position), problem, Reason.RESERVED_ARGUMENT)


def _problem(spec: AtomDeploymentSpec, argument: str, known: PodFlag) -> str | None:
    """Return the error in an argument, with its remedy; None if the spec may give it."""
    given = argument.partition("=")[0]
    match known.use:
        case PodUse.FIELD:
            own = f"use spec.{known.note}" if known.note else "the operator sets it; leave it out"
            return f"{given} belongs to the operator: {own}"
        case PodUse.REFUSED:
            return f"{given} is refused: {known.note}"
        case PodUse.VOLUME:
            return batch_folder_problem(spec, given)
        case _:
            return None


def _place(position: int) -> str:
    return f"spec.engine.extraArgs[{position}]"
