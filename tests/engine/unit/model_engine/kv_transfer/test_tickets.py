"""Tickets over generated lives: blocks are returned once, never later than the lease allows, and
never more of them are held than the share."""

from __future__ import annotations

import random

import pytest

from atom.model_engine.kv_transfer.pulls import PullTable
from atom.model_engine.kv_transfer.tickets import GoneError, TicketTable
from atom.model_engine.transfer_legs import PullEnd

_LEASE, _MOST = 30.0, 40


@pytest.mark.parametrize("seed", range(100))
def test_blocks_are_returned_once_and_in_time(seed: int) -> None:
    dice = random.Random(seed)
    table: TicketTable[str] = TicketTable(_LEASE, _MOST)
    now, promised, returned = 0.0, {}, []
    heard: dict[str, float] = {}  # when a consumer was last heard of a ticket
    sizes: dict[str, int] = {}
    read: set[str] = set()
    for step in range(200):
        now += dice.choice((0.0, 0.5, 4.0))
        held = [name for name in heard if name not in returned]
        name = dice.choice(held) if held else "none"
        action = dice.randrange(7)
        if action == 0:
            size = dice.randrange(1, 12)
            if table.promise(step, size):
                promised[step] = size
        elif action == 1 and promised:
            number, size = promised.popitem()
            assert table.withdraw(number)
            if dice.random() < 0.8:
                made = f"ticket {step}"
                table.grant(made, made, size, now)
                heard[made], sizes[made] = now, size
        elif action == 2:
            try:
                assert table.read(name, now) == name
                assert name not in read, "it is read once"
                read.add(name)
                heard[name] = now
            except GoneError:
                assert name in read or name == "none" or now - heard[name] >= _LEASE
        elif action == 3:
            gone = table.renew([name, "unknown"], now)
            assert "unknown" in gone
            if name not in gone:
                heard[name] = now
        elif action == 4:
            returned += table.end(name)
        elif action == 5:
            returned += table.expire(now)
            late = [each for each in heard if each not in returned and now - heard[each] >= _LEASE]
            assert not late
        elif action == 6 and dice.random() < 0.1:
            returned += table.void()
        assert len(returned) == len(set(returned)), "blocks are returned once"
        kept = sum(sizes[each] for each in heard if each not in returned)
        assert table.num_blocks == kept + sum(promised.values()) <= _MOST
    returned += table.expire(now + _LEASE)
    assert set(returned) == set(heard)
    assert len(table) == 0


def test_pages_of_a_pull_come_in_any_order_and_count_once() -> None:
    for seed in range(50):
        dice = random.Random(seed)
        pulls = PullTable(20.0, 30.0)
        pull = pulls.begin("ticket", 0.0)
        assert pull is not None
        assert pulls.begin("ticket", 0.0) is None, "another request waits for it"
        pull.num_pages = 6
        order = [*range(6), *dice.choices(range(9), k=6)]
        dice.shuffle(order)
        used = [number for number in order if pulls.page("ticket", number, 1.0, whole=True)]
        assert sorted(used) == list(range(6))
        assert [each.ticket for each in pulls.take_ended()] == ["ticket"]
        assert pull.end is None


def test_the_first_reason_of_a_pull_stays() -> None:
    pulls = PullTable(20.0, 30.0)
    pull = pulls.begin("ticket", 0.0)
    assert pull is not None
    pull.num_pages = 3
    assert pulls.page("ticket", 0, 1.0, whole=True)
    assert not pulls.page("ticket", 1, 1.0, whole=False)
    pulls.complete("ticket")
    pulls.fail(["ticket"], PullEnd.LOST)
    assert (pull.end, pull.came) == (PullEnd.CHECKSUM, {0})
    assert pulls.checksum_errors_total == 1


def test_leases_are_renewed_six_times_before_they_end() -> None:
    pulls = PullTable(100.0, 30.0)
    pulls.begin("ticket", 0.0)
    renewals = [second for second in range(60) if list(pulls.due_renewals(float(second)))]
    assert renewals == [5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55]
    pulls.expire(100.0)
    (pull,) = pulls.take_ended()
    assert pull.end is PullEnd.TIMEOUT
