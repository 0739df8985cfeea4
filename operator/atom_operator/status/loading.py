"""ModelLoaded: how far the engines' start-up is, in their own words. Pure."""

from __future__ import annotations

from atom_operator.constants import ConditionType, Reason
from atom_operator.domain import EngineHealth, EngineView, LoadProgress, PodState
from atom_operator.sizes import size_text
from atom_operator.status.conditions import Verdict

_KIND = ConditionType.MODEL_LOADED
_STARTING = "starting"
_LOADING_WEIGHTS = "loading weights"  # the engine's name of the phase


def model_loaded(pods: tuple[PodState, ...], engines: EngineView, *, desired: int) -> Verdict:
    """Judge: True if every pod's engine has its model; otherwise the report of the first one
    without. A worker of a group has no report: its leader has the model when all of them have. If
    `desired` replicas are wanted and no pod exists, the model is not loaded."""
    pods = tuple(pod for pod in pods if pod.serves)
    if not pods:
        words = "there are no engine pods"
        return Verdict(_KIND, "False" if desired else "Unknown", Reason.NO_PODS, words)
    waiting = [pod for pod in pods if not pod.ready]
    done = f"{len(pods) - len(waiting)} of {len(pods)} pods have loaded the model"
    if not waiting:
        return Verdict(_KIND, "True", Reason.LOADED, done)
    for pod, health in sorted(engines.not_serving, key=lambda item: not _is_stalled(item[1])):
        return Verdict(_KIND, "False", _reason(health), f"{done}; pod {pod} {_words(health)}")
    failing = next((pod for pod in waiting if pod.health.problem), None)
    if failing is not None:
        message = f"{done}; pod {failing.name}: {failing.health.problem}"
        return Verdict(_KIND, "False", Reason.POD_FAILING, message)
    message = f"{done}; the engine of pod {waiting[0].name} does not answer yet"
    return Verdict(_KIND, "False", Reason.ENGINE_SILENT, message)


def progress_text(progress: LoadProgress) -> str:
    """Return how far and how fast: percent, bytes, rate, and the time that is left at this rate."""
    text = f"{progress.phase} {progress.fraction:.0%}"
    total, rate = progress.bytes_total, progress.bytes_per_second
    if not total:
        return text
    text += f" of {size_text(total)}"
    if not rate:
        return text
    left = (1 - progress.fraction) * total / rate
    return f"{text} at {size_text(rate)}/s, about {_duration(left)} left"


def stall_text(progress: LoadProgress) -> str:
    """Describe the phase at which loading stopped, and for how long."""
    silent = _duration(progress.seconds_without_progress)
    return f"has made no progress for {silent} at: {progress.phase} {progress.fraction:.0%}"


def _is_stalled(health: EngineHealth) -> bool:
    return health.progress is not None and health.progress.stalled


def _reason(health: EngineHealth) -> Reason:
    if health.state != _STARTING:
        return Reason.ENGINE_NOT_READY
    if _is_stalled(health):
        return Reason.LOAD_STALLED
    if health.progress is not None and health.progress.phase == _LOADING_WEIGHTS:
        return Reason.LOADING_WEIGHTS
    return Reason.LOADING


def _words(health: EngineHealth) -> str:
    progress = health.progress
    if progress is None or health.state != _STARTING:
        return f"is {health.state}: {health.reason}"
    if progress.stalled:
        return (
            f"{stall_text(progress)}; look at its log and at the volume or network that the "
            "weights come from. It is restarted when its start-up budget is spent"
        )
    return f"is starting: {progress_text(progress)}"


def _duration(seconds: float) -> str:
    """Round to whole minutes from two on: a message that changed with every second would be written
    so."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds // 60:.0f} min"
