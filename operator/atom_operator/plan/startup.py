"""Start-up budget: how long a pod may take until it serves, for the startup probe.

Generous on purpose: a probe that kills a pod while it loads never lets it finish. The rates are
slow ends of observed clusters (a hub download at 50 MB/s, a network claim at 200, an image layer on
local disk at 400), and the loading time is doubled for safety. The measurement of an engine of the
same kind replaces a rate, but a fast start (from a warm page cache) shortens the next budget by
half at most.
"""

from __future__ import annotations

from atom.sizing import ModelFacts
from atom_operator.domain import Accelerator, SourceKind, StartupTimes

_BYTES_PER_SECOND = {
    SourceKind.HUB: 50_000_000,
    SourceKind.CLAIM: 200_000_000,
    SourceKind.PATH: 400_000_000,
    SourceKind.BUCKET: 50_000_000,
    SourceKind.IMAGE: 400_000_000,
}
# Imports, device initialisation, warm-up; on a GPU also kernel compilation with a cold cache.
_BASE_SECONDS = {"amd": 600, "cpu": 180}
_UNKNOWN_SIZE_SECONDS = 3600
_SAFETY_FACTOR = 2
_MOST_SPEED_UP = 2
_IMAGE_PULL_SECONDS = 600


def startup_budget_seconds(
    facts: ModelFacts | None,
    source: SourceKind,
    accelerator: Accelerator,
    measured: StartupTimes | None = None,
    draft: ModelFacts | None = None,
) -> int:
    """Return the seconds until a pod that does not serve, and does not move either, is
    restarted."""
    base = _BASE_SECONDS[accelerator.type]
    if measured is not None:
        rest = measured.total_seconds - measured.weights_seconds
        base = max(base, int(_SAFETY_FACTOR * rest))
    if facts is None:
        return base + _UNKNOWN_SIZE_SECONDS
    # Draft layers are part of the checkpoint, used or not.
    load_seconds = int(facts.weight_bytes(with_mtp=True) / _bytes_per_second(source, measured))
    if draft is not None:  # wherever it comes from: a hub is the slowest
        load_seconds += draft.weight_bytes() // _BYTES_PER_SECOND[SourceKind.HUB]
    return base + _SAFETY_FACTOR * load_seconds


def _bytes_per_second(source: SourceKind, measured: StartupTimes | None) -> float:
    assumed = _BYTES_PER_SECOND[source]
    # A model that every pod downloads is loaded from its own disk: that measures nothing of the
    # hub.
    own = (SourceKind.HUB, SourceKind.BUCKET)
    if source in own or measured is None or measured.weights_seconds <= 0:
        return assumed
    found = measured.checkpoint_bytes / measured.weights_seconds
    return max(1.0, min(found, _MOST_SPEED_UP * assumed))


def progress_deadline_seconds(startup_seconds: int, drain_seconds: int) -> int:
    """Return the seconds without progress after which a rollout has failed: an old pod may have to
    drain before a new one has its devices, the image has to come, and the pod to start."""
    return drain_seconds + _IMAGE_PULL_SECONDS + startup_seconds


def deadline_warnings(
    asked: int | None, startup_seconds: int, drain_seconds: int
) -> tuple[str, ...]:
    """Return a warning if the deadline is shorter than a healthy rollout may take."""
    least = drain_seconds + startup_seconds
    if asked is None or asked >= least:
        return ()
    return (
        f"spec.rollout.progressDeadlineSeconds: {asked} is less than the {least} s that an old pod "
        f"may drain ({drain_seconds} s) and a new one start ({startup_seconds} s), so a change may "
        "be given up that would have succeeded; set at least that, or leave it out",
    )
