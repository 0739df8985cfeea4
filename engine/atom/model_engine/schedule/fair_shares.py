"""FairShares: which of several accounts is served next, so that each gets its weight's part.

Weighted fair queueing over tokens, as VTC does it for language models (Sheng et al., "Fairness in
Serving Large Language Models", OSDI 2024): every account counts its service, divided by its weight,
and the waiting account with the least is next. The virtual time is the service that a weight of one
would have received so far; an account that arrives, or returns, begins there, so that idleness
earns no credit and arrival costs no debt. All service advances the virtual time: a stream of new
accounts overtakes a waiting one only until that one is owed more. Accounts may be nested. Knows no
requests and no clock; used by FairQueue.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

# Accounts without a request that are ahead of the virtual time, and so are not forgotten yet.
MOST_DEPARTED = 1024

Holder = TypeVar("Holder")


class Account(Generic[Holder]):
    """Account for one client's, or one group's, service. holder: the queue of its requests. parent:
    the account that is charged with it. service: in tokens, by its weight. last_pick: the number of
    the pick that served it last, 0 for none."""

    __slots__ = (
        "holder", "last_pick", "listed", "name", "open", "parent", "running", "service", "shares",
        "waiting", "weight",
    )  # fmt: skip

    def __init__(
        self, name: str, shares: FairShares[Holder], holder: Holder, parent: Account[Any] | None
    ) -> None:
        self.name = name
        self.shares = shares
        self.holder = holder
        self.parent = parent
        self.weight = shares.weights.get(name, 1.0)
        self.service = 0.0
        self.waiting = 0
        self.running = 0
        self.open = 0  # both together; it is active while there is any
        self.last_pick = 0
        self.listed = False  # among those that are looked at for the next pick

    @property
    def load(self) -> float:
        """Return how many of its requests run, by its weight."""
        return self.running / self.weight

    def move(self, *, waiting: int = 0, running: int = 0) -> None:
        """Add to this account's counts of waiting and running requests; negative numbers
        subtract."""
        self.shares.move(self, waiting, running)
        if self.parent is not None:
            self.parent.move(waiting=waiting, running=running)

    def charge(self, tokens: float) -> None:
        """Charge the tokens that this active account received."""
        self.shares.charge(self, tokens)
        if self.parent is not None:
            self.parent.charge(tokens)

    def pick(self) -> None:
        """Record that this account is served now."""
        self.last_pick = self.shares.next_pick()
        if self.parent is not None:
            self.parent.pick()


class FairShares(Generic[Holder]):
    """Shares the engine between accounts by their weights. weights: by name, above 0; 1 for every
    other."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.weights = weights
        self.virtual_time = 0.0
        self.num_active = 0
        self._active_weight = 0.0
        self._accounts: dict[str, Account[Holder]] = {}
        self._num_waiting = 0  # accounts with a request that waits
        # Service and last pick as they were when it was put here; the number makes entries differ.
        self._heap: list[tuple[float, int, int, Account[Holder]]] = []
        self._entries = itertools.count()
        self._picks = itertools.count(1)

    def __len__(self) -> int:
        """Return how many accounts are remembered."""
        return len(self._accounts)

    def __iter__(self) -> Iterator[Account[Holder]]:
        return iter(self._accounts.values())

    def get(self, name: str) -> Account[Holder] | None:
        return self._accounts.get(name)

    def open(
        self, name: str, holder: Holder, parent: Account[Any] | None = None
    ) -> Account[Holder]:
        """Open an account, whose first request is about to arrive; it is forgotten some time after
        its last one has ended."""
        account = self._accounts[name] = Account(name, self, holder, parent)
        return account

    # ---- active accounts ----------------------------------------------------------------------

    def move(self, account: Account[Holder], waiting: int, running: int) -> None:
        did_wait, was_open = account.waiting, account.open
        account.waiting = waits = did_wait + waiting
        account.running += running
        account.open = is_open = was_open + waiting + running
        if not was_open:
            self.num_active += 1
            self._active_weight += account.weight
            account.service = max(account.service, self.virtual_time)
        if not (did_wait and waits):
            if bool(did_wait) != bool(waits):
                self._num_waiting += 1 if waits else -1
                self._list(account)
            if not is_open:
                self._depart(account)

    def _list(self, account: Account[Holder]) -> None:
        if account.waiting and not account.listed:
            account.listed = True
            heapq.heappush(self._heap, self._entry(account))
        if len(self._heap) > 2 * self._num_waiting + 8:  # mostly entries of those that left
            for *_, each in self._heap:
                each.listed = each.waiting > 0
            self._heap = [entry for entry in self._heap if entry[3].listed]
            heapq.heapify(self._heap)

    def _entry(self, account: Account[Holder]) -> tuple[float, int, int, Account[Holder]]:
        return account.service, account.last_pick, next(self._entries), account

    def _depart(self, account: Account[Holder]) -> None:
        """Close an account whose last request has ended. What it was given beyond its part stays
        known."""
        self.num_active -= 1
        self._active_weight -= account.weight
        if not self.num_active:  # no other account is owed a part of anything
            self._accounts.clear()
            self._heap.clear()
            account.listed = False
            self._active_weight = self.virtual_time = 0.0
        elif account.service <= self.virtual_time:
            del self._accounts[account.name]
        elif len(self._accounts) - self.num_active > MOST_DEPARTED:
            self._forget_departed()

    def _forget_departed(self) -> None:
        """Forget the departed accounts that the virtual time has reached, and of the others all but
        the half of the bound that are furthest ahead."""
        gone = [account for account in self if not account.open]
        gone.sort(key=lambda account: account.service)
        for account in gone[: -(MOST_DEPARTED // 2)]:
            del self._accounts[account.name]
        for account in gone[-(MOST_DEPARTED // 2) :]:
            if account.service <= self.virtual_time:
                del self._accounts[account.name]

    # ---- service ------------------------------------------------------------------------------

    def charge(self, account: Account[Holder], tokens: float) -> None:
        account.service += tokens / account.weight
        self.virtual_time += tokens / self._active_weight

    def next(self) -> Account[Holder]:
        """Choose whose turn it is of the accounts with a request that waits, of which there is one
        at least. Of equal ones the one that was served longest ago."""
        heap = self._heap
        while True:
            service, last_pick, _, account = heap[0]
            if not account.waiting:
                account.listed = False
                heapq.heappop(heap)
            elif (service, last_pick) != (account.service, account.last_pick):
                heapq.heapreplace(heap, self._entry(account))  # its service since
            else:
                return account

    def next_pick(self) -> int:
        return next(self._picks)
