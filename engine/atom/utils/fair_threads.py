"""FairThreads: a few threads that share their work fairly among clients.

The next task belongs to the client with the fewest running tasks, and among equals to the one that
has waited longest since its last task; a client's own tasks keep their order. One client never
holds all threads: with one left over, another client's first task begins at once, however many
hopeless tasks the first client has queued. The class does not know the tasks' work. Used by
GrammarCompiler, AsyncText and BodyTurns.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class Task:
    """Work that is done once, whichever of its clients' turn comes first."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self._work = work

    def run(self) -> None:
        """Run the task, on a thread of the pool."""
        try:
            result = self._work()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


@dataclass(slots=True)
class _Client:
    """The tasks of a client; last_turn: when its last task began, counted in tasks."""

    queue: deque[Task] = field(default_factory=deque)
    running: int = 0
    last_turn: int = 0


class FairThreads:
    def __init__(self, num_threads: int, name: str) -> None:
        """Threads start with the first task, and are no reason for the process to stay."""
        self._num_threads = num_threads
        self._name = name
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._clients: dict[str, _Client] = {}
        self._turns = 0
        self._closed = False

    def submit(self, client: str, task: Task) -> None:
        """Queue a task for a client; one may be queued for several. Its future is cancelled when
        the threads end before its turn."""
        with self._changed:
            if self._closed:
                task.future.cancel()
                return
            self._clients.setdefault(client, _Client()).queue.append(task)
            if len(self._threads) < self._num_threads:
                name = f"{self._name}-{len(self._threads)}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify()

    async def run(
        self, client: str, work: Callable[[], _Result], closed: Callable[[], Exception]
    ) -> _Result:
        """Run `work` for a client in a thread, without blocking the event loop. closed: makes the
        error to raise if the threads end first. Raises the exceptions of `work`."""
        task = Task(work)
        self.submit(client, task)
        try:
            result: _Result = await asyncio.wrap_future(task.future)
        except asyncio.CancelledError:
            asked = asyncio.current_task()
            if asked is not None and asked.cancelling():
                raise
            raise closed() from None
        return result

    def close(self) -> None:
        """Start no more tasks; running tasks are finished."""
        with self._changed:
            self._closed = True
            waiting = [task for client in self._clients.values() for task in client.queue]
            self._clients.clear()
            self._changed.notify_all()
        for task in waiting:
            task.future.cancel()

    def _serve(self) -> None:
        while (turn := self._next()) is not None:
            client, task = turn
            task.run()
            with self._changed:
                client.running -= 1
                self._changed.notify()

    def _next(self) -> tuple[_Client, Task] | None:
        """Begin and return the next task; None when the threads end."""
        with self._changed:
            while not self._closed:
                client = self._whose_turn()
                if client is None:
                    self._changed.wait()
                    continue
                task = client.queue.popleft()
                if task.future.running() or task.future.done():
                    continue  # another client's turn came first
                task.future.set_running_or_notify_cancel()
                self._turns += 1
                client.last_turn = self._turns
                client.running += 1
                return client, task
        return None

    def _whose_turn(self) -> _Client | None:
        """Return the client with the next turn, dropping clients without tasks."""
        self._clients = {
            name: client for name, client in self._clients.items() if client.queue or client.running
        }
        most = max(self._num_threads - 1, 1)
        able = [
            client for client in self._clients.values() if client.queue and client.running < most
        ]
        return min(able, key=lambda client: (client.running, client.last_turn), default=None)
