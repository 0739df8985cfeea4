"""spec.slo: the autoscaler's signal, the engines' reports, and the conditions made of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atom_operator.children.autoscaling.hpa import horizontal_pod_autoscaler
from atom_operator.children.autoscaling.keda_scaledobject import scaled_object
from atom_operator.children.autoscaling.latency_signal import replicas_for
from atom_operator.children.monitoring import alerts
from atom_operator.constants import Reason
from atom_operator.domain import (
    EngineOutlook,
    EngineView,
    Latencies,
    ObjectKey,
    PartedSteps,
    Plan,
    SeenLatencies,
)
from atom_operator.kinds import AUTOSCALER, SCALED_OBJECT
from atom_operator.plan.spec_digest import spec_digest
from atom_operator.plan_report import facts
from atom_operator.pods.engine_metrics import parse_metrics
from atom_operator.pods.histograms import added, quantile, since
from atom_operator.reconcile.latencies.latency_window import LatencyWindow
from atom_operator.status.conditions import Verdict
from atom_operator.status.slo.slo_met import slo_met
from atom_operator.status.slo.steps_as_predicted import steps_as_predicted
from atom_operator.status.slo.steps_status import steps_status
from tests.support.operator.builders_operator import parsed, plan
from tests.support.random_search import examples

KEY = ObjectKey("default", "chat")
BOTH = {"ttft": "2s", "itl": "50ms"}
BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, float("inf"))


def scaled(slo: Mapping[str, Any] | None, **scaling: Any) -> Any:
    asked = {"method": "KEDA", "maxReplicas": 4, "prometheus": {"serverAddress": "http://p"}}
    return plan(autoscaling={**asked, **scaling}, **({} if slo is None else {"slo": slo}))


def triggers(planned: Any) -> dict[str, str]:
    found = scaled_object(
        planned.identity, planned.engine, planned.scale, planned.integrations.autoscaling, None
    )
    return {each["name"]: each["metadata"]["query"] for each in found["spec"]["triggers"]}


# ---- the signal ---------------------------------------------------------------------------------


def test_latencies_take_the_place_of_numbers_of_requests() -> None:
    assert list(triggers(scaled(None))) == ["running", "waiting", "kv-usage"]
    found = triggers(scaled(BOTH))
    assert list(found) == ["slo", "load", "kv-usage"]
    assert "sum(atom:predicted_load_ratio{" in found["load"]
    assert "atom:predicted_ttft_seconds" in found["slo"]
    assert "/ 2 " in found["slo"]
    assert "/ 0.05" in found["slo"]
    assert "quantile(0.9, quantile_over_time(0.9, " in found["slo"]
    asked = triggers(scaled({"itl": "40ms", "percentile": 99}, targetConcurrency=7))
    assert list(asked) == ["running", "slo", "load", "kv-usage"]
    assert "predicted_ttft_seconds{" in asked["slo"], "pods are counted by it"
    assert "quantile(0.99" in asked["slo"]
    assert "quantile_over_time(0.99, atom:predicted_ttft" not in asked["slo"]


def test_an_autoscaler_of_the_api_aims_at_the_calm_end_of_the_band() -> None:
    planned = scaled(BOTH, method="HPA")
    found = horizontal_pod_autoscaler(
        planned.identity, planned.engine, planned.integrations.autoscaling, None
    )
    metrics = {
        each["pods"]["metric"]["name"]: each["pods"]["target"]["averageValue"]
        for each in found["spec"]["metrics"]
    }
    assert metrics["atom_predicted_ttft_seconds"] == "1400m"
    assert metrics["atom_predicted_itl_seconds"] == "35m"
    assert metrics["atom_predicted_load_ratio"] == "600m"
    assert "atom_requests_running" not in metrics
    behavior = found["spec"]["behavior"]["scaleDown"]
    assert behavior["stabilizationWindowSeconds"] == 300


@settings(max_examples=examples(24), deadline=None)
@given(ratio=st.floats(0, 50), pods=st.integers(1, 200))
def test_the_signal_asks_for_more_when_late_and_for_fewer_when_calm(
    ratio: float, pods: int
) -> None:
    wanted = replicas_for(ratio, pods)
    if ratio > 1:
        assert pods <= wanted <= 2 * pods
    elif ratio >= 0.7:
        assert wanted == pytest.approx(pods)
    else:
        assert wanted == pytest.approx(pods * ratio / 0.7)
    assert replicas_for(ratio + 0.1, pods) >= wanted - 1e-9


def test_the_plan_and_the_alerts_name_the_targets() -> None:
    planned = scaled(BOTH)
    assert "predicted latencies over spec.slo" in dict(facts(planned))["autoscaling"]
    names = [each["alert"] for each in alerts(planned)]
    assert {"AtomSloMissed", "AtomStepsOffPrediction"} <= set(names)
    assert "AtomSloMissed" not in [each["alert"] for each in alerts(scaled(None))]


def test_targets_replace_no_pod() -> None:
    digests = {spec_digest(parsed(slo=slo), "image", None) for slo in (None, BOTH, {"ttft": "1s"})}
    assert len(digests) == 1


@pytest.mark.parametrize("kind", [AUTOSCALER, SCALED_OBJECT])
def test_targets_alone_make_no_autoscaler(kind: Any) -> None:
    planned = plan(slo=BOTH)
    assert planned.integrations.autoscaling is None
    assert planned.integrations.slo is not None


# ---- what engines tell --------------------------------------------------------------------------


def body(**changes: str) -> bytes:
    lines = {
        "predicted_ttft_seconds": "0.8",
        "predicted_itl_seconds": "0.02",
        "step_seconds_ratio": "1.25",
        **changes,
    }
    text = [f'atom:{name}{{model_name="m"}} {value}' for name, value in lines.items() if value]
    for resource in ("nothing", "compute", "sequences", "kv_cache"):
        on = int(resource == "kv_cache")
        text.append(f'atom:predicted_ttft_limit{{model_name="m",resource="{resource}"}} {on}.0')
    for bound, count in ((0.5, 3), (2.0, 8), ("+Inf", 9)):
        series = f'{{model_name="m",le="{bound}"}} {count}'
        text += [f"atom:time_to_first_token_seconds_bucket{series}"]
    return "\n".join(text).encode()


def test_an_engines_predictions_are_read() -> None:
    found = parse_metrics(body()).outlook
    assert found is not None
    assert (found.ttft_seconds, found.itl_seconds, found.limit) == (0.8, 0.02, "kv_cache")
    assert found.steps_ratio == 1.25
    assert found.ttft == ((0.5, 3.0), (2.0, 8.0), (float("inf"), 9.0))
    assert found.itl == ()


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({"step_seconds_ratio": ""}, True),
        ({"step_seconds_ratio": "nan"}, False),
        ({"predicted_ttft_seconds": ""}, False),
        ({"predicted_itl_seconds": "-1"}, False),
        ({"predicted_ttft_seconds": "inf"}, False),
    ],
)
def test_odd_predictions_are_unknown_and_nothing_else_is(
    changes: dict[str, str], known: bool
) -> None:
    assert (parse_metrics(body(**changes)).outlook is not None) == known


def test_a_histogram_that_no_engine_would_report_is_none() -> None:
    for bound in ("x", "nan"):
        text = body() + f'\natom:time_to_first_token_seconds_bucket{{le="{bound}"}} 4'.encode()
        found = parse_metrics(text).outlook
        assert found is not None
        assert len(found.ttft) == 3
    falls = body().replace(b'le="2.0"} 8', b'le="2.0"} 1')
    found = parse_metrics(falls).outlook
    assert found is not None
    assert found.ttft == ()


# ---- histograms ---------------------------------------------------------------------------------


def buckets(*seconds: float) -> tuple[tuple[float, float], ...]:
    return tuple((bound, float(sum(each <= bound for each in seconds))) for bound in BOUNDS)


@settings(max_examples=examples(16), deadline=None)
@given(st.lists(st.floats(0.001, 2.4), min_size=1, max_size=50), st.floats(0.5, 0.99))
def test_a_quantile_lies_in_the_bucket_of_its_observation(
    values: list[float], share: float
) -> None:
    found = quantile(buckets(*values), share)
    exact = sorted(values)[max(0, -(-int(share * len(values) * 1000) // 1000) - 1)]
    assert found is not None
    edges = (0.0, *BOUNDS)
    place = next(at for at, bound in enumerate(BOUNDS) if exact <= bound)
    assert edges[max(0, place - 1)] <= found <= BOUNDS[min(place + 1, len(BOUNDS) - 2)]


def test_histograms_are_added_and_subtracted() -> None:
    assert added([buckets(0.2), buckets(0.2, 3.0), ()]) == buckets(0.2, 0.2, 3.0)
    assert since(buckets(0.2), buckets(0.2, 0.9)) == buckets(0.9)
    assert since(buckets(0.2, 0.2), buckets(0.9)) == buckets(0.9), "the engine began again"
    assert quantile((), 0.9) is None
    assert quantile(buckets(), 0.9) is None
    assert quantile(buckets(9.0), 0.9) == 2.5


# ---- the window ---------------------------------------------------------------------------------


def outlook(ttft: float = 0.5, itl: float = 0.02, **changes: Any) -> EngineOutlook:
    values = {"limit": "nothing", "steps_ratio": None, "ttft": (), "itl": (), **changes}
    return EngineOutlook(ttft_seconds=ttft, itl_seconds=itl, **values)


def test_recent_latencies_are_those_since_five_minutes_ago() -> None:
    window, begin = LatencyWindow(), datetime(2026, 1, 1, tzinfo=UTC)
    early = [0.2] * 100
    found = window.look(KEY, {"a": outlook(ttft=1.0)}, begin)
    assert found.seen is None
    for minute in range(1, 12):
        values = early + [1.5] * (10 * minute)
        told = {"a": outlook(ttft=1.0)}
        told = {"a": EngineOutlook(1.0, 0.02, "nothing", None, buckets(*values), ())}
        found = window.look(KEY, told, begin + timedelta(minutes=minute))
    assert found.seen is not None
    assert found.seen.seconds == pytest.approx(300, abs=61)
    assert found.seen.ttft[-1][1] == pytest.approx(50, abs=11)
    window.forget(KEY)
    assert window.look(KEY, {}, begin + timedelta(minutes=13)).seen is None


def test_a_pod_that_parts_from_its_table_is_named_with_the_time() -> None:
    window, begin = LatencyWindow(), datetime(2026, 1, 1, tzinfo=UTC)
    for minute in range(12):
        told = {
            "a": outlook(steps_ratio=1.5 if minute > 0 else 1.0),
            "b": outlook(steps_ratio=2.0 if minute == 11 else 1.1),
        }
        found = window.look(KEY, told, begin + timedelta(minutes=minute))
    assert found.compared == 2
    assert found.parted == PartedSteps("a", 1.5, 600.0)
    found = window.look(KEY, {"a": outlook(steps_ratio=1.0)}, begin + timedelta(minutes=13))
    assert found.parted is None


# ---- the conditions -----------------------------------------------------------------------------


def view(*engines: EngineOutlook, seen: SeenLatencies | None = None, **more: Any) -> EngineView:
    predicted = tuple((f"pod-{number}", each) for number, each in enumerate(engines))
    return EngineView(latencies=Latencies(predicted, seen, **more))


def met(planned: Plan, engines: EngineView) -> Verdict | None:
    """Judge pods that all are as asked for."""
    return slo_met(planned, planned, engines)


def test_targets_that_are_kept_are_reported_with_their_numbers() -> None:
    found = met(plan(slo=BOTH), view(outlook(0.5, 0.02)))
    assert found is not None
    assert (found.status, found.reason) == ("True", Reason.TARGETS_MET)
    assert "500 ms of 2 s" in found.message
    assert "20 ms of 50 ms" in found.message
    assert met(plan(), view(outlook())) is None
    unknown = met(plan(slo=BOTH), view())
    assert unknown is not None
    assert unknown.status == "Unknown"


@pytest.mark.parametrize(
    ("limit", "reason", "remedy"),
    [
        ("kv_cache", Reason.KV_CACHE_SHORT, "kvCacheDtype"),
        ("sequences", Reason.SEQUENCES_SHORT, "maxNumSeqs"),
        ("compute", Reason.COMPUTE_SHORT, "prefixAware"),
        ("nothing", Reason.COMPUTE_SHORT, "prefixAware"),
    ],
)
def test_a_late_first_token_names_its_resource_and_the_remedy(
    limit: str, reason: Reason, remedy: str
) -> None:
    found = met(plan(slo=BOTH), view(outlook(9.0, limit=limit), outlook(0.1)))
    assert found is not None
    assert (found.status, found.reason) == ("False", reason)
    assert remedy in found.message
    assert "spec.replicas" in found.message
    assert "9 s of 2 s" in found.message


def test_late_next_tokens_are_long_steps() -> None:
    found = met(plan(slo=BOTH), view(outlook(0.1, 0.2, limit="kv_cache")))
    assert found is not None
    assert found.reason is Reason.STEPS_TOO_LONG
    assert "spec.parallelism.tensor" in found.message


def test_seen_latencies_decide_if_there_are_enough() -> None:
    late = SeenLatencies(300.0, buckets(*[2.4] * 30), buckets(*[0.01] * 30))
    few = SeenLatencies(300.0, buckets(2.4), ())
    found = met(plan(slo=BOTH), view(outlook(0.1), seen=late))
    assert found is not None
    assert found.status == "False"
    assert "seen" in found.message
    assert "now 100 ms predicted" in found.message
    kept = met(plan(slo=BOTH), view(outlook(0.1), seen=few))
    assert kept is not None
    assert kept.status == "True"


def test_a_missed_target_says_how_far_the_autoscaler_can_go() -> None:
    found = met(scaled(BOTH), view(outlook(9.0, limit="compute")))
    assert found is not None
    assert "maxReplicas (4)" in found.message


def test_steps_that_part_for_ten_minutes_are_reported() -> None:
    asked = plan(slo=BOTH)
    slow, fast = PartedSteps("a", 1.6, 700.0), PartedSteps("a", 0.5, 700.0)
    young = PartedSteps("a", 1.6, 500.0)
    expected = (
        (None, "True", Reason.MATCHES_TABLE),
        (young, "True", Reason.MATCHES_TABLE),
        (slow, "False", Reason.STEPS_SLOWER),
        (fast, "False", Reason.STEPS_FASTER),
    )
    for parted, status, reason in expected:
        found = steps_as_predicted(asked, view(outlook(), compared=1, parted=parted))
        assert found is not None
        assert (found.status, found.reason) == (status, reason)
    assert steps_as_predicted(asked, view(outlook())) is None, "no card has a table"
    assert steps_as_predicted(plan(), view(outlook(), compared=1)) is None


# ---- the steps for the next advice --------------------------------------------------------------


def seen_steps(*ratios: float | None) -> Latencies:
    return Latencies(
        predicted=tuple(
            (f"pod-{place}", EngineOutlook(0.1, 0.01, "", ratio, (), ()))
            for place, ratio in enumerate(ratios)
        )
    )


@pytest.mark.parametrize(
    ("ratios", "percent", "pods"),
    [((1.1,), 110, 1), ((0.9, None, 3.0), 195, 2), ((0.8, 1.0, 5.0), 100, 3), ((99.0,), 1000, 1)],
)
def test_the_status_has_the_median_of_the_steps(
    ratios: tuple[float | None, ...], percent: int, pods: int
) -> None:
    found = steps_status(seen_steps(*ratios), "r1", {})
    assert found == {"percentOfTable": percent, "pods": pods}


def test_steps_that_change_little_write_no_status_and_silence_keeps_the_report() -> None:
    last = {"revision": "r1", "steps": {"percentOfTable": 110, "pods": 1}}
    for ratio in (1.06, 1.1, 1.14):
        assert steps_status(seen_steps(ratio), "r1", last) == last["steps"]
    assert steps_status(seen_steps(1.2), "r1", last) == {"percentOfTable": 120, "pods": 1}
    for silent in (seen_steps(), seen_steps(None)):
        assert steps_status(silent, "r1", last) == last["steps"]
        assert steps_status(silent, "r2", last) is None, "it was of other pods"
    assert steps_status(None, "r1", last) is None, "spec.slo was removed"
