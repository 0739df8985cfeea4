"""A simulated day: replicas that follow predicted latencies keep the targets for less."""

from __future__ import annotations

import random

import pytest

from benchmarks.advice.fleet_day import (
    DecodeReplica,
    Load,
    PrefillReplica,
    Request,
    bursts_of,
    by_latency,
    by_thresholds,
    compare,
    compare_roles,
    rate,
    simulate,
    simulate_roles,
)

HOUR = Load(peak=12.0, begin=11.0, end=11.5)


def test_a_day_is_the_same_each_time_and_ends_its_requests() -> None:
    one, again = (simulate("", by_latency, 2, HOUR) for _ in range(2))
    assert one == again
    assert one.requests > 0.9 * 12.0 * 1800 * 0.9


def test_too_few_replicas_miss_the_targets_and_more_are_asked_for() -> None:
    few = simulate("", None, 1, Load(peak=40.0, begin=11.0, end=11.3))
    assert few.kept < 0.5
    followed = simulate("", by_latency, 1, Load(peak=40.0, begin=11.0, end=11.3))
    assert followed.most > 1
    assert followed.kept > few.kept
    assert simulate("", by_thresholds, 1, Load(peak=40.0, begin=11.0, end=11.3)).most > 1


def test_the_load_has_a_night_a_noon_and_bursts() -> None:
    bursts = bursts_of(random.Random(1), 24.0)
    assert len(bursts) == 12
    assert rate(0, 10.0, []) < 0.2 * rate(43_200, 10.0, [])
    begin, _, times = bursts[0]
    assert rate(begin, 10.0, bursts) == pytest.approx(times * rate(begin, 10.0, []))


def test_each_role_follows_its_own_latency() -> None:
    busy = Load(peak=40.0, begin=11.0, end=11.2)
    few, followed = (simulate_roles("", signal, (1, 1), busy) for signal in (None, by_latency))
    assert few.kept < 0.5
    assert followed.kept > few.kept
    prompts, answers = PrefillReplica(0.0), DecodeReplica(0.0)
    for replica in (prompts, answers):
        replica.waiting.extend(Request(0.0) for _ in range(400))
        replica.tick(0.0, [])
    assert prompts.ratio() > 1, "many prompts wait"
    assert 0 < answers.ratio() < 1, "steps stay short, however many wait"


@pytest.mark.slow
def test_a_day_of_two_roles_costs_less_than_their_peaks() -> None:
    fixed, followed = compare_roles(Load())
    assert followed.kept >= 0.95
    assert followed.replica_hours <= 0.8 * fixed.replica_hours


@pytest.mark.slow
def test_a_day_within_targets_costs_three_quarters_of_the_peak_at_most() -> None:
    fixed, thresholds, predicted = compare(Load())
    assert predicted.kept >= 0.95
    assert predicted.replica_hours <= 0.75 * fixed.replica_hours
    assert predicted.kept > thresholds.kept
    assert predicted.replica_hours < thresholds.replica_hours
