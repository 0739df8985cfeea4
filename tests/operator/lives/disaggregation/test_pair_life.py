"""Generated lives with prefill and decode pods hold what the documents promise, of both roles and
of all beside them: canaries, profiles, autoscalers, quotas, edits and operators that die."""

from __future__ import annotations

import pytest

from tests.support.operator_life.lives import broken_seed
from tests.support.operator_life.pairs import PAIR_HAPPENINGS, draw_pair_story

# 6: the default image changes while the first prefill pods start. 27: decode pods that cannot start
# are asked for, and then whole ones. 52: two prefill pods in a zone. 138: prefill pods fill a quota
# of claims, and the only old decode pod has none. 500086: whole pods with a target of the first
# token are asked for, and do not start beside decode pods that have no such target. 900042: decode
# pods of other memory wait for old prefill pods that end. 3000487: a change waits for the canary's
# turn while the decode pods before it still roll out. 5000500: decode pods lose the rule by which
# the old ones keep them off their nodes. 5000882: whole pods are asked for, for which two
# old pods would have to go unless prefill pods went first.
DAILY = (27, 500086)
MORE = (52, 0, 6, 138, 900042, 3000487, 5000500, 5000882)


def live(seed: int) -> None:
    found = broken_seed("pair", seed)
    assert found is None, str(found)


@pytest.mark.parametrize(
    "seed", [*DAILY, *(pytest.param(seed, marks=pytest.mark.whole) for seed in MORE)]
)
def test_lives_with_roles_hold_what_the_documents_promise(seed: int) -> None:
    live(seed)


def test_roles_meet_every_other_kind_of_happening() -> None:
    """The draw reaches each pair of a change of roles and a happening of another kind."""
    before: set[str] = set()
    for seed in range(1500):
        names = {happening.name for happening in draw_pair_story(seed).happenings}
        if names & PAIR_HAPPENINGS.keys():
            before |= names
    wanted = {
        *("ask_for_a_canary", "decide", "change_the_profile", "change_the_default_image"),
        *("ask_for_an_autoscaler", "let_the_load_move", "limit_by_a_quota", "roll_back_the_spec"),
        *("ask_for_a_frontend", "suspend", "kill_the_operator", "upgrade_the_operator"),
        *("pause_the_workload", "drain_a_node", "let_devices_fall_sick", "rename_the_model"),
        *PAIR_HAPPENINGS,
    }
    assert wanted <= before


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(10))
def test_a_thousand_lives_with_roles(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        live(seed)
