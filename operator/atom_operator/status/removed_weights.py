"""The Event that reports the folders a download removed from its claim. Pure.

The Job's last message lists them and is deleted with its pod, so the Event follows once, soon
after. Called by the reconciler.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from atom_operator.constants import Reason
from atom_operator.domain.preparation import JobState
from atom_operator.sizes import size_text
from atom_operator.status.events import Happening

_SOON = timedelta(minutes=10)


def removal(name: str, state: JobState, now: datetime) -> Happening | None:
    """Build the Event of a Job's removals; None if there are none, or if the Job ended long ago."""
    if state.finished_at is None or now - state.finished_at > _SOON:
        return None
    try:
        said = json.loads(state.result or "")
        folders, count = [str(each) for each in said["removed"]], int(said["removedFolders"])
        size = int(said["removedBytes"])
    except (ValueError, KeyError, TypeError):
        return None
    more = f" and {count - len(folders)} more" if count > len(folders) else ""
    message = (
        f"Job {name} removed {size_text(size)} from the claim that nothing of the namespace uses: "
        f"{', '.join(folders)}{more}"
    )
    at = f"{name} {state.finished_at.isoformat()}"
    return Happening("Normal", "Job", at, Reason.UNUSED_WEIGHTS_REMOVED, message)
