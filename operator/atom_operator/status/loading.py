"""ModelLoaded: how far the engines' start-up is, in their own words. Pure."""

from __future__ import annotations

from atom_operator.constants import ConditionType, Reason
from atom_operator.domain import EngineView, PodState
from atom_operator.status.conditions import Verdict

_KIND = ConditionType.MODEL_LOADED
_STARTING = "starting"


def model_loaded(pods: tuple[PodState, ...], engines: EngineView) -> Verdict:
    """True when every pod's engine has its model; otherwise what the first that has not says."""
    if not pods:
        return Verdict(_KIND, "Unknown", Reason.NO_PODS, "there are no engine pods")
    waiting = [pod for pod in pods if not pod.ready]
    done = f"{len(pods) - len(waiting)} of {len(pods)} pods have loaded the model"
    if not waiting:
        return Verdict(_KIND, "True", Reason.LOADED, done)
    for pod, health in engines.not_serving:
        reason = Reason.LOADING if health.state == _STARTING else Reason.ENGINE_NOT_READY
        message = f"{done}; pod {pod} is {health.state}: {health.reason}"
        return Verdict(_KIND, "False", reason, message)
    failing = next((pod for pod in waiting if pod.problem), None)
    if failing is not None:
        message = f"{done}; pod {failing.name}: {failing.problem}"
        return Verdict(_KIND, "False", Reason.POD_FAILING, message)
    message = f"{done}; the engine of pod {waiting[0].name} does not answer yet"
    return Verdict(_KIND, "False", Reason.ENGINE_SILENT, message)
