"""status.adapters and AdaptersReady: the adapters' states for callers who name them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from atom_operator.constants import ConditionType, Reason
from atom_operator.domain import (
    Adapter,
    AdapterState,
    ConditionStatus,
    EngineView,
    Observed,
    RolloutWait,
)
from atom_operator.status.conditions import Verdict

_KIND = ConditionType.ADAPTERS_READY
_LOADED, _LOADING, _REFUSED, _UNKNOWN = "Loaded", "Loading", "Refused", "Unknown"
_STATES = {"loaded": _LOADED, "refused": _REFUSED}
_WORST_FIRST: tuple[tuple[str, ConditionStatus, Reason], ...] = (
    (_REFUSED, "False", Reason.ADAPTER_REFUSED),
    (_LOADING, "False", Reason.ADAPTERS_LOADING),
    (_UNKNOWN, "Unknown", Reason.ENGINE_SILENT),
)
_MOST_PODS = 16  # of an adapter, those first that do not serve it


@dataclass(frozen=True, slots=True)
class _OnPod:
    """Hold the state of an adapter on a pod."""

    adapter: str
    pod: str
    state: str
    message: str = ""


def adapter_status(adapters: tuple[Adapter, ...], engines: EngineView) -> list[dict[str, Any]]:
    """Build the list for the status: every adapter of the spec, with the pods that serve."""
    found = []
    for adapter in adapters:
        pods = list(_on_pods(adapter, engines))
        shown = sorted(pods, key=lambda each: each.state == _LOADED)[:_MOST_PODS]
        found.append(
            {
                "name": adapter.name,
                "loadedPods": sum(each.state == _LOADED for each in pods),
                "pods": [_shown(each) for each in shown],
            }
        )
    return found


def adapters_ready(
    adapters: tuple[Adapter, ...], observed: Observed, engines: EngineView
) -> Verdict | None:
    """Judge: True if every pod that serves has every adapter; else the first one's lack, and its
    effect on callers. None without adapters."""
    if not adapters:
        return None
    if not any(pod.ready for pod in observed.pods):
        return Verdict(_KIND, "Unknown", Reason.NO_PODS, "no pod serves yet, with or without them")
    states = [each for adapter in adapters for each in _on_pods(adapter, engines)]
    for state, status, reason in _WORST_FIRST:
        first = next((each for each in states if each.state == state), None)
        if first is not None:
            return Verdict(_KIND, status, reason, _lacking(first, states, len(engines.adapters)))
    count, pods = len(adapters), len(engines.adapters)
    message = f"adapters: {count}, each served by all pods that serve ({pods})"
    return Verdict(_KIND, "True", Reason.ADAPTERS_LOADED, message)


def without_adapters(waits: RolloutWait | None) -> Verdict:
    """Report that the serving pods were made without room for adapters."""
    made = "the pods that serve were made without adapters"
    if waits is not None:
        message = f"{made}; a rollout that brings them waits: {waits.told}"
        return Verdict(_KIND, "False", Reason.ROLLOUT_WAITS, message)
    return Verdict(_KIND, "False", Reason.ADAPTERS_LOADING, f"{made}; new ones are being made")


def _lacking(first: _OnPod, states: list[_OnPod], pods: int) -> str:
    alike = [each for each in states if each.state == first.state]
    on = sum(each.adapter == first.adapter for each in alike)
    others = len({each.adapter for each in alike}) - 1
    more = f" (and {others} more adapters)" if others else ""
    where = f"{on} of {pods} pods"
    if first.state == _UNKNOWN:
        return f"pod {first.pod} does not tell which adapters it serves"
    if first.state == _LOADING:
        return f"{where} load {first.adapter}; requests that meet them get HTTP 404{more}"
    return f"{where} refuse {first.adapter}{more}: pod {first.pod}: {first.message}"


def _on_pods(adapter: Adapter, engines: EngineView) -> Iterator[_OnPod]:
    for pod, told in engines.adapters.items():
        yield _on_pod(adapter, pod, told)


def _on_pod(adapter: Adapter, pod: str, told: tuple[AdapterState, ...] | None) -> _OnPod:
    if told is None:
        return _OnPod(adapter.name, pod, _UNKNOWN)
    for each in told:
        if (each.name, each.path) == (adapter.name, adapter.path):
            state = _STATES.get(each.state, _LOADING)
            return _OnPod(adapter.name, pod, state, each.message)
    return _OnPod(adapter.name, pod, _LOADING)  # its list is not renewed yet


def _shown(each: _OnPod) -> Mapping[str, str]:
    message = {"message": each.message} if each.message else {}
    return {"name": each.pod, "state": each.state, **message}
