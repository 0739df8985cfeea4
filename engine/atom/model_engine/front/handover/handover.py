"""Handover: open answers continue on other replicas when their engine here has to end, or did.

Each answer is handled separately: it is taken from the core, offered to the replicas, and returned
to the core if no replica takes it. The server that holds the client's connection relays until the
end. Owned by AsyncLLMEngine, on whose loop it runs; an engine without other replicas has none.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence

from atom.errors import EngineDeadError, RequestError
from atom.model_engine.front.handover.continuations import Continuations
from atom.model_engine.front.handover.handed_request import HandedRequest
from atom.model_engine.front.handover.relays import Relays, Replicas
from atom.model_engine.front.open_requests import OpenRequests
from atom.model_engine.front.step_delivery import StepDelivery
from atom.model_engine.request import LoRARequest, Request
from atom.model_engine.wire.core_port import CorePort
from atom.model_engine.wire.engine_protocol import StreamBody

logger = logging.getLogger(__name__)


class Handover:
    def __init__(
        self,
        replicas: Replicas,
        requests: OpenRequests,
        delivery: StepDelivery,
        weights_version: Callable[[LoRARequest | None], str],
    ) -> None:
        """weights_version: of the weights that answers of an adapter, or of the model alone, are
        computed by now."""
        self._replicas = replicas
        self._requests = requests
        self._delivery = delivery
        self._weights_version = weights_version
        self._relays = Relays(
            replicas, self._deliver, self._fail, requests.note_went_on, requests.note_moved
        )
        self._lost: asyncio.Task[None] | None = None  # held, or it could be collected

    @property
    def num_left(self) -> int:
        """Count the open requests that no replica continues."""
        return len(self._requests) - len(self._relays)

    def abort(self, numbers: Sequence[int]) -> list[int]:
        """End the relayed requests among these; return the others."""
        return self._relays.abort(numbers)

    def close(self) -> None:
        self._relays.close()

    async def hand_over(self, core: CorePort, continuations: Continuations) -> None:
        """Let replicas continue all requests of a core, as far as they take them."""
        if not self.num_left or not await self._replicas.are_there():
            return
        numbers = self._numbers_here()
        requests = continuations.of(numbers, _gone, lost=False)
        core.abort_requests(numbers)
        refused = await self._begin(requests)
        core.add_requests([request for request, _ in refused])
        handed = len(requests) - len(refused)
        logger.info("%d of %d open answers go on at other replicas", handed, len(requests))
        _tell_of(refused)

    def hand_over_lost(self, continuations: Continuations, reason: str) -> None:
        """Let replicas continue the requests of a core that has ended; the ones that none takes
        fail."""

        async def go_on() -> None:
            refused = await self._begin(requests)
            for request, _ in refused:
                self._requests.fail_each([request.id], lambda: EngineDeadError(reason))
            _tell_of(refused)

        requests = continuations.of(
            self._numbers_here(), lambda: EngineDeadError(reason), lost=True
        )
        self._lost = asyncio.create_task(go_on())

    def _numbers_here(self) -> list[int]:
        return [each for each in self._requests.by_number if not self._relays.has(each)]

    async def _begin(self, requests: Sequence[Request]) -> list[tuple[Request, RequestError]]:
        """Begin to relay requests in parallel; return the ones that no replica takes, and why."""
        handed = list(map(self._handed, requests))
        own = socket.gethostname()  # a pod's name
        begun = [self._relays.begin(each, own) for each in handed]
        results = await asyncio.gather(*begun, return_exceptions=True)
        refused = []
        for request, result in zip(requests, results, strict=True):
            if isinstance(result, RequestError):
                refused.append((request, result))
            elif result is not None:
                raise result
        # One that its client has left meanwhile is over.
        return [pair for pair in refused if pair[0].id in self._requests.by_number]

    def _handed(self, request: Request) -> HandedRequest:
        name = self._requests.by_number[request.id].reader.name
        return HandedRequest(request, name, self._weights_version(request.lora))

    def _deliver(self, step: StreamBody) -> None:
        self._delivery.take(step)
        self._requests.deliver(self._delivery.taken())

    def _fail(self, number: int, error: Exception) -> None:
        self._requests.fail_each([number], lambda: error)


def _tell_of(refused: Sequence[tuple[Request, RequestError]]) -> None:
    for _, error in refused[:1]:
        logger.warning("%d answers were taken by no replica: %s", len(refused), error)


def _gone() -> Exception:
    return RequestError("the server shut down before the answer was complete", status=503)
