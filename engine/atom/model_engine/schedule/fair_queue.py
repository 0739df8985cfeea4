"""FairQueue: which waiting request is served next, fairly between clients.

Clients are served by fair shares of tokens (fair_shares.py): the prompt tokens to compute count
when a request begins, generated tokens as they arrive. Clients whose id has a slash form a group,
named by the part before the slash, and all clients of a group divide one client's share. Within a
client the order is WaitingQueue's, by priority and arrival; with one client that is the order of
all. A preempted request returns to its place there and is charged only once. Used by Scheduler
only; reads no clock.

While all open requests are one client's, which is the usual case, only that client's WaitingQueue
exists: its service and the virtual time advance alike. Accounts are opened when another client
arrives, and closed once no request is left.

The queue also chooses the request to preempt: among the requests of the group, and in it of the
client, that runs most requests by its weight, the one that is due last. So a client's first request
never makes room for another's fiftieth, and no two requests preempt each other in turn. The same
rule selects the rows that make way for a client that waits and runs fewer than its share
(making_way.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from atom.client_label import BATCH_GROUP
from atom.model_engine.schedule.fair_shares import Account, FairShares
from atom.model_engine.schedule.row_table import RowTable
from atom.model_engine.schedule.waiting_queue import Rank, WaitingQueue, rank_of
from atom.model_engine.sequence import NO_SLOT, Sequence

BATCH_WEIGHT = 0.01  # share of all stored batches: they get what other clients leave
Clients = FairShares[WaitingQueue]
Client = Account[WaitingQueue]


class FairQueue:
    def __init__(
        self, rows: RowTable, *, weights: Mapping[str, float] | None = None, fair: bool = True
    ) -> None:
        """weights: by name of a group, or of a client in its group. fair: False to take all
        requests for one client's: first come, first served."""
        self._rows = rows
        self._weights = {BATCH_GROUP: BATCH_WEIGHT, **(weights or {})}
        self._fair = fair
        self._alone: WaitingQueue | None = WaitingQueue()  # the one client's; None of several
        self._alone_id = ""
        self._was_served = False  # the one client, since it came
        # Below: of several clients.
        self._groups: FairShares[Clients] = FairShares(self._weights)
        self._clients: dict[int, Client] = {}  # of each request, by id
        self._num_waiting = 0
        self._num_active = 0  # clients
        self._runs: dict[int, Client] = {}  # by slot
        self._charged = np.zeros_like(rows.num_tokens)  # how many of each row's tokens

    def __len__(self) -> int:
        """Return how many wait."""
        return self._num_waiting if self._alone is None else len(self._alone)

    def __iter__(self) -> Iterator[Sequence]:
        """Yield all that wait, in no particular order."""
        if self._alone is not None:
            yield from self._alone
        for group in self._groups:
            for client in group.holder:
                yield from client.holder

    @property
    def first(self) -> Sequence:
        """Return the sequence that is served next, by the charges so far; at least one must
        wait."""
        if self._alone is not None:
            return self._alone.first
        return self._groups.next().holder.next().holder.first

    @property
    def is_shared(self) -> bool:
        """Return whether several clients have requests that wait or run."""
        return self._alone is None and self._num_active > 1

    def clients_in(self, slots: list[int]) -> list[Client]:
        """List the client of each of these slots; empty if all requests are one client's."""
        return [] if self._alone is not None else [self._runs[slot] for slot in slots]

    def is_beside(self, slots: list[int]) -> bool:
        """Return whether the client that is served next has none of these slots; false if there is
        only one client."""
        if self._alone is not None or not self._num_waiting:
            return False
        self.settle()
        client = self._groups.next().holder.next()
        return all(self._runs[slot] is not client for slot in slots)

    # ---- events of a request ------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence, opening its client's account if needed."""
        if self._alone is not None:
            if self._is_alone(sequence.client_id if self._fair else ""):
                self._alone.add(sequence)
                return
            self._open_accounts(self._alone)
        client = self._client_of(sequence.client_id)
        self._clients[sequence.id] = client
        if not client.open:
            self.settle(entering=True)
        self._wait(sequence, client)

    def admit(self, sequence: Sequence, computed_tokens: int) -> None:
        """Admit the first sequence, which has a slot; `computed_tokens` of its tokens are to be
        computed and were not charged before."""
        if self._alone is not None:
            self._was_served = True
            self._alone.remove(sequence)
            return
        client = self._clients[sequence.id]
        client.holder.remove(sequence)
        self._num_waiting -= 1
        client.pick()
        self._move(client, waiting=-1, running=1)
        self._runs[sequence.slot] = client
        self._charged[sequence.slot] = sequence.num_tokens
        client.charge(computed_tokens)

    def preempt(self, sequence: Sequence) -> None:
        """Queue a sequence again that is about to leave its slot."""
        if self._alone is not None:
            self._alone.add(sequence)
            return
        client = self._clients[sequence.id]
        self._wait(sequence, client)
        self._leave(sequence, client)

    def end(self, sequence: Sequence) -> None:
        """Remove a sequence that waits or is about to leave its slot."""
        if self._alone is not None:
            if sequence.slot == NO_SLOT:
                self._alone.remove(sequence)
            return
        client = self._clients.pop(sequence.id)
        if sequence.slot in self._runs:
            self._leave(sequence, client)
        else:
            if client.open == 1:
                self.settle()
            client.holder.remove(sequence)
            self._num_waiting -= 1
            self._move(client, waiting=-1)
        if not self._num_active:
            self._alone = WaitingQueue()

    # ---- one client, and several --------------------------------------------------------------

    def _is_alone(self, client_id: str) -> bool:
        """Return whether a request of this client's leaves it the only one."""
        if self._alone or not self._rows.is_empty:
            return client_id == self._alone_id
        self._alone_id = client_id
        self._was_served = False
        return True

    def _open_accounts(self, alone: WaitingQueue) -> None:
        """Open accounts when another client comes; the first is the one that was alone. All that it
        was given so far is its own and the virtual time's."""
        self._alone = None
        running = [sequence for sequence in self._rows.sequences if sequence is not None]
        client = self._client_of(self._alone_id, alone)
        self._num_waiting = len(alone)
        self._clients.update((sequence.id, client) for sequence in (*alone, *running))
        self._runs = {sequence.slot: client for sequence in running}
        self._charged[:] = self._rows.num_tokens
        if self._was_served:
            client.pick()
        self._move(client, waiting=len(alone), running=len(running))

    def _client_of(self, client_id: str, holder: WaitingQueue | None = None) -> Client:
        """Find or open a client's account. holder: the queue of a new account, if it exists
        already."""
        group_name, _, name = client_id.partition("/")
        group = self._groups.get(group_name)
        if group is None:
            group = self._groups.open(group_name, FairShares(self._weights))
        client = group.holder.get(name)
        if client is None:
            client = group.holder.open(name, WaitingQueue() if holder is None else holder, group)
        return client

    def _wait(self, sequence: Sequence, client: Client) -> None:
        client.holder.add(sequence)
        self._num_waiting += 1
        self._move(client, waiting=1)

    def _leave(self, sequence: Sequence, client: Client) -> None:
        if client.open == 1:
            self.settle()
        else:
            self._settle_row(sequence.slot, client)
        del self._runs[sequence.slot]
        self._move(client, running=-1)

    def _move(self, client: Client, *, waiting: int = 0, running: int = 0) -> None:
        if not client.open:
            self._num_active += 1
        client.move(waiting=waiting, running=running)
        if not client.open:
            self._num_active -= 1

    # ---- charges ------------------------------------------------------------------------------

    def settle(self, *, entering: bool = False) -> None:
        """Charge the tokens that running rows have generated since their last charge. Skipped for a
        single active client, whose service changes no order, unless another is `entering`."""
        if not self._runs or not (entering or self._num_active > 1):
            return
        slots = np.fromiter(self._runs, dtype=np.intp, count=len(self._runs))
        tokens, charged = self._rows.num_tokens[slots], self._charged[slots]
        self._charged[slots] = np.maximum(tokens, charged)
        due: dict[Client, int] = {}
        for client, count in zip(self._runs.values(), (tokens - charged).tolist(), strict=True):
            if count > 0:  # fewer where drafts were counted on that did not hold
                due[client] = due.get(client, 0) + count
        for client, count in due.items():
            client.charge(count)

    def _settle_row(self, slot: int, client: Client) -> None:
        if self._num_active > 1:
            count = int(self._rows.num_tokens[slot] - self._charged[slot])
            if count > 0:
                client.charge(count)

    # ---- preemption ---------------------------------------------------------------------------

    def making_way(self) -> list[Sequence]:
        """List the rows that may be preempted for the first waiting sequence, newest first: those
        of the client that runs most. Before each preemption that client runs more rows, by weight,
        than the waiting client does with one more. Empty if none may, or no sequence waits."""
        if self._alone is not None or not self._num_waiting or not self._runs:
            return []
        self.settle()
        client = self._groups.next().holder.next()
        running = set(self._runs.values())
        richest = max(running, key=_load)
        count = 0
        if richest.parent is not client.parent:  # groups are compared before their clients
            count = _most_given(client.parent, richest.parent)
        if count < 1:
            richest = max(
                (c for c in running if c.parent is client.parent), key=_load, default=client
            )
            count = _most_given(client, richest)
        if count < 1:
            return []
        rows = self._rows.sequence_in
        owned = [rows(slot) for slot, owner in self._runs.items() if owner is richest]
        owned.sort(key=rank_of, reverse=True)
        return owned[:count]

    def last_due(self, running: Iterable[Sequence]) -> Sequence:
        """Choose the sequence that makes room for the others, one at least."""
        if self._alone is not None:
            return max(running, key=rank_of)
        return max(running, key=self._dueness)

    def _dueness(self, sequence: Sequence) -> tuple[float, float, Rank]:
        return *_load(self._clients[sequence.id]), rank_of(sequence)


def _load(client: Client) -> tuple[float, float]:
    assert client.parent is not None
    return client.parent.load, client.load


def _most_given(poor: Account[Any] | None, rich: Account[Any] | None) -> int:
    """Count the rows that `rich` may give, one after another, so that `poor` runs one more: before
    each of them it runs more, by weight, than `poor` then does."""
    assert poor is not None
    assert rich is not None
    return math.ceil(rich.running + 1 - rich.weight * (poor.running + 1) / poor.weight) - 1
