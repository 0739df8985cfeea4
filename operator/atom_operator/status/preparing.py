"""ModelLoaded and Progressing while a Job still prepares the model. Pure."""

from __future__ import annotations

from atom_operator.constants import ConditionType, Reason
from atom_operator.domain import ConditionStatus
from atom_operator.domain.preparation import Waiting
from atom_operator.status.conditions import Verdict
from atom_operator.status.loading import progress_text, stall_text


def model_not_there(waiting: Waiting) -> Verdict:
    """Return how far the preparation is, or why it failed."""
    return Verdict(ConditionType.MODEL_LOADED, "False", waiting.reason, _text(waiting))


def waits(waiting: Waiting, *, serving: bool) -> Verdict:
    """Judge Progressing: the preparation continues by itself, or a user has to help."""
    meanwhile = "what runs goes on" if serving else "nothing is started"
    status: ConditionStatus = "False" if waiting.failed else "True"
    message = f"{_text(waiting)}; {meanwhile} until then"
    return Verdict(ConditionType.PROGRESSING, status, waiting.reason, message)


def _text(waiting: Waiting) -> str:
    progress = waiting.progress
    if progress is None:
        return waiting.message
    if waiting.reason is Reason.DOWNLOAD_STALLED:
        return f"{waiting.message} and {stall_text(progress)}; look at its log and at the network"
    return f"{waiting.message}: {progress_text(progress)}"
