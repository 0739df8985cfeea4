"""StepsAsPredicted: the steps of pods beside the measured table of their card. Pure."""

from __future__ import annotations

from atom_operator.constants import ConditionType, Reason
from atom_operator.domain import EngineView, Plan
from atom_operator.status.conditions import Verdict

_PARTED_SECONDS = 600.0


def steps_as_predicted(plan: Plan | None, engines: EngineView) -> Verdict | None:
    """Return whether steps take as long as their card's table predicts; None without targets, or if
    no card has a measured table."""
    found = engines.latencies
    if plan is None or plan.integrations.slo is None or found is None or not found.compared:
        return None
    kind, parted = ConditionType.STEPS_AS_PREDICTED, found.parted
    if parted is None or parted.seconds < _PARTED_SECONDS:
        words = f"steps of {found.compared} pods take what the table of their card predicts"
        return Verdict(kind, "True", Reason.MATCHES_TABLE, words)
    times = f"{parted.ratio:.1f} times" if parted.ratio > 1 else f"{parted.ratio:.0%} of"
    minutes = int(parted.seconds // 60)
    words = f"steps of pod {parted.pod} take {times} what the table of its card predicts"
    if parted.ratio > 1:
        remedy = (
            "look for a throttled or sick device and for other work on it (kubectl atom gpus); if "
            "all pods are alike, measure the card's table again"
        )
        return Verdict(
            kind, "False", Reason.STEPS_SLOWER, f"{words}, for {minutes} minutes; {remedy}"
        )
    remedy = "measure the card's table again (python -m benchmarks.gpu --rates)"
    return Verdict(kind, "False", Reason.STEPS_FASTER, f"{words}, for {minutes} minutes; {remedy}")
