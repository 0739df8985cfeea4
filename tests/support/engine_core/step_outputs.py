"""The book of open requests and the output processor, for tests that play an engine's steps."""

from __future__ import annotations

from dataclasses import dataclass

from atom.metrics import RequestMetrics
from atom.model_engine.front.open_requests import OpenRequests
from atom.model_engine.front.output_processor import OutputProcessor
from atom.model_engine.request import Request, RequestOutput
from atom.model_engine.wire.engine_protocol import StreamBody
from atom.tokenizer import Tokenizer


@dataclass(frozen=True)
class ShownStep:
    """outputs: by the number of their request."""

    outputs: list[tuple[int, RequestOutput]]
    abort_ids: list[int]


class StepReader:
    """Turns steps into outputs and delivers them, as an engine's front half does."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.metrics = RequestMetrics()
        self._outputs = OutputProcessor(tokenizer, self.metrics)
        self._open = OpenRequests(self._outputs, lambda numbers: None)

    def __len__(self) -> int:
        """How many requests are open."""
        return len(self._open)

    def add(self, request: Request, name: str) -> None:
        self._open.open([name], [request])

    def discard(self, number: int) -> None:
        """The reader of a request leaves, if it is open."""
        request = self._open.by_number.get(number)
        if request is not None:
            request.reader.group.close()

    def process(self, body: StreamBody, now: float) -> ShownStep:
        step = self._outputs.process(body, self._open.by_number, now)
        self._open.deliver(step.outputs)
        outputs = [(request.number, output) for request, output in step.outputs]
        return ShownStep(outputs, step.abort_ids)
