"""Continuations: answers that continue elsewhere when their engine is gone.

The rest of each answer is requested under a new number, so that late tokens of the old place reach
no client. The caller chooses the engine to ask. Both engines own one; it belongs to their thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from atom.model_engine.front.open_requests import OpenRequests
from atom.model_engine.front.step_delivery import StepDelivery
from atom.model_engine.request import Request
from atom.model_engine.wire.engine_protocol import StreamBody, aborted_row


class Continuations:
    def __init__(
        self, requests: OpenRequests, delivery: StepDelivery, numbers: Iterator[int]
    ) -> None:
        """numbers: new requests' ids come from it."""
        self._requests = requests
        self._delivery = delivery
        self._numbers = numbers

    def of(
        self, numbers: Iterable[int], make_error: Callable[[], Exception], *, lost: bool
    ) -> list[Request]:
        """Make requests for the rest of these answers. lost: their engine ended without notice. An
        answer whose text a stop string has ended ends here, and one that may not continue, since it
        may be the cause of engines' ends, fails by `make_error`."""
        again, complete = [], []
        for number in list(numbers):
            request = self._requests.go_on(number, next(self._numbers), lost=lost)
            if request is not None:
                again.append(request)
                continue
            opened = self._requests.by_number.get(number)
            if opened is not None and opened.text.stopped:
                complete.append(aborted_row(number))
            else:
                self._requests.fail_each([number], make_error)
        if complete:
            self._delivery.take(StreamBody(b"", b"", complete))
            self._requests.deliver(self._delivery.taken())
        return again
