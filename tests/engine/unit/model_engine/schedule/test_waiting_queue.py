"""Who is served next: priority against time waited, and nobody for ever last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atom.model_engine.schedule.waiting_queue import SECONDS_PER_PRIORITY_STEP, WaitingQueue
from atom.model_engine.sequence import Sequence
from tests.support.engine_core.builders_engine import make_request


def waiting(number: int, *, arrive_time: float = 0.0, priority: int = 0) -> Sequence:
    return Sequence(make_request(number, arrive_time=arrive_time, priority=priority))


def served(queue: WaitingQueue) -> list[int]:
    order = []
    while queue:
        order.append(queue.first.id)
        queue.remove(queue.first)
    return order


def test_equal_priorities_are_served_in_the_order_they_came() -> None:
    queue = WaitingQueue()
    for number, arrive_time in ((1, 0.0), (2, 0.0), (3, 0.5)):
        queue.add(waiting(number, arrive_time=arrive_time))
    assert served(queue) == [1, 2, 3]


def test_a_lower_number_is_served_sooner() -> None:
    queue = WaitingQueue()
    for number, priority in ((1, 0), (2, 5), (3, -5)):
        queue.add(waiting(number, priority=priority))
    assert served(queue) == [3, 1, 2]


def test_waiting_makes_up_for_priority() -> None:
    queue = WaitingQueue()
    queue.add(waiting(1, priority=3))
    queue.add(waiting(2, arrive_time=2.9 * SECONDS_PER_PRIORITY_STEP))
    queue.add(waiting(3, arrive_time=3.1 * SECONDS_PER_PRIORITY_STEP))
    assert served(queue) == [2, 1, 3], "it is passed for three seconds, no longer"


ARRIVALS = st.lists(st.tuples(st.floats(0, 100), st.integers(-100, 100)), min_size=1, max_size=30)


@given(ARRIVALS)
def test_nobody_is_passed_by_one_that_came_much_later(arrivals) -> None:
    queue = WaitingQueue()
    entered = []
    for number, (arrive_time, priority) in enumerate(arrivals):
        entered.append(waiting(number, arrive_time=arrive_time, priority=priority))
        queue.add(entered[-1])
    order = served(queue)
    for place, number in enumerate(order):
        for later in order[place + 1 :]:
            passed, passing = entered[later], entered[number]
            head_start = (passed.priority - passing.priority) * SECONDS_PER_PRIORITY_STEP
            assert passing.arrive_time - passed.arrive_time <= head_start + 1e-6


@given(ARRIVALS, st.data())
def test_who_leaves_early_is_forgotten_and_the_others_keep_their_order(arrivals, data) -> None:
    queue, reference = WaitingQueue(), WaitingQueue()
    entered = [waiting(n, arrive_time=t, priority=p) for n, (t, p) in enumerate(arrivals)]
    leaving = data.draw(st.sets(st.integers(0, len(entered) - 1)))
    for sequence in entered:
        queue.add(sequence)
        if sequence.id not in leaving:
            reference.add(sequence)
    for number in leaving:
        queue.remove(entered[number])
    assert len(queue) == len(entered) - len(leaving)
    assert {sequence.id for sequence in queue} == set(range(len(entered))) - leaving
    assert served(queue) == served(reference)
