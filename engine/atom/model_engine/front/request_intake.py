"""RequestIntake: prompts and sampling parameters to requests, and these to streams that are open.

Checks everything that a request says, tokenises, makes one request per answer, and opens a stream
for each. Whether the engine takes requests now is not its business, nor how they reach a core.
Owned by AsyncLLMEngine, on whose loop it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from atom.model_engine.front.async_text import AsyncText
from atom.model_engine.front.input_output_processor import InputOutputProcessor
from atom.model_engine.front.input_processor import Prompt
from atom.model_engine.front.open_requests import OpenRequests
from atom.model_engine.front.request_stream import (
    ReaderLimits,
    ReaderWake,
    RequestGroup,
    RequestStream,
)
from atom.model_engine.request import Request
from atom.model_engine.wire.request_size import check_size
from atom.sampling_params import SamplingParams


class RequestIntake:
    def __init__(
        self,
        processor: InputOutputProcessor,
        text: AsyncText,
        open_requests: OpenRequests,
        numbers: Iterator[int],
        reader_limits: ReaderLimits | None,
        clock: Callable[[], float],
    ) -> None:
        """numbers: the requests' ids come from it."""
        self._processor = processor
        self._text = text
        self._open_requests = open_requests
        self._numbers = numbers
        self._reader_limits = reader_limits
        self._clock = clock

    async def requests_of(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        *,
        add_special_tokens: bool,
        priority: int,
        cache_salt: str,
    ) -> list[Request]:
        """`params.n` requests for each prompt, prompt by prompt; they arrive now. Raises
        `RequestError`."""
        arrive_time = self._clock()
        inputs = self._processor.inputs
        prepared = inputs.prepare(params)
        tokens = await self._text.tokenize(prompts, add_special_tokens=add_special_tokens)
        check_size(tokens, prepared)
        return [
            request
            for token_ids in tokens
            for request in inputs.build_requests(
                self._numbers,
                token_ids,
                prepared,
                arrive_time=arrive_time,
                priority=priority,
                cache_salt=cache_salt,
            )
        ]

    def open(self, name: str, requests: Sequence[Request]) -> RequestGroup:
        """A stream for each; their outputs carry `name`."""
        wake = ReaderWake()
        return RequestGroup([self._open(name, request, wake) for request in requests], wake)

    def _open(self, name: str, request: Request, wake: ReaderWake) -> RequestStream:
        number = request.id
        tells_of_prompt = request.params.prompt_logprobs is not None
        stream = RequestStream(
            name,
            len(request.prompt_token_ids),
            abort=lambda: self._open_requests.leave(number),
            prompt_token_ids=request.prompt_token_ids if tells_of_prompt else (),
            wake=wake,
            limits=self._reader_limits,
            clock=self._clock,
        )
        self._processor.outputs.add(request, name)
        self._open_requests.open(number, stream)
        return stream
