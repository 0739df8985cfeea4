"""StepDelivery: engine steps to outputs for their readers, several steps at a time if the loop is
late.

A step is processed when it is taken and delivered together with the waiting outputs; a step that
cannot be processed fails its own requests alone. Both engines own one; it belongs to their thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from atom.model_engine.front.open_request import OpenRequest
from atom.model_engine.front.open_requests import OpenRequests
from atom.model_engine.front.output_processor import OutputProcessor
from atom.model_engine.request import RequestOutput
from atom.model_engine.wire.engine_protocol import StreamBody

logger = logging.getLogger(__name__)


class StepDelivery:
    def __init__(
        self, outputs: OutputProcessor, requests: OpenRequests, clock: Callable[[], float]
    ) -> None:
        self._outputs = outputs
        self._requests = requests
        self._clock = clock
        self._waiting: list[tuple[OpenRequest, RequestOutput]] = []

    def take(self, body: StreamBody) -> None:
        """Process one step's tokens; pass the `taken` outputs to `OpenRequests.deliver` next."""
        try:
            step = self._outputs.process(body, self._requests.by_number, self._clock())
        except Exception as error:
            cause = error
            # A fault of ours must not leave callers waiting, nor end the others' requests.
            logger.exception("the outputs of a step could not be processed")
            self._requests.deliver(self.taken())  # a failure is delivered after the earlier outputs
            concerned = {*body.requests(), *(row.request_id for row in body.finished)}
            self._requests.fail_each(concerned, lambda: _unprocessed(cause))
            return
        if step.abort_ids:
            self._requests.abort(step.abort_ids)
        self._waiting += step.outputs

    def taken(self) -> list[tuple[OpenRequest, RequestOutput]]:
        """Return the outputs that wait for delivery, and clear them."""
        outputs, self._waiting = self._waiting, []
        return outputs


def _unprocessed(cause: Exception) -> RuntimeError:
    error = RuntimeError("the answer could not be processed")
    error.__cause__ = cause
    return error
