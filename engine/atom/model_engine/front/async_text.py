"""AsyncText: tokenizes and detokenizes for an event loop that other requests share.

Short texts are processed at once; long or many texts on threads, which clients share fairly: the
tokenizer lets other threads run meanwhile, and a chat template yields every moment. Owned by
AsyncLLMEngine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence, Sized
from functools import partial
from typing import TypeVar

from atom.errors import EngineDeadError
from atom.model_engine.front.input_output_processor import InputOutputProcessor
from atom.model_engine.front.input_processor import Prompt
from atom.model_engine.request import group_of
from atom.sampling_params import TruncationSide
from atom.utils.fair_threads import FairThreads

_LONG_TEXT_CHARACTERS = 8192  # or as many tokens
_MOST_THREADS = 32
_LEAST_THREADS = 2  # one is left for other clients

_Result = TypeVar("_Result")


class AsyncText:
    def __init__(self, processor: InputOutputProcessor) -> None:
        self._processor = processor
        # Not more than there are cores: the event loop would wait for all of them.
        cores = min(_MOST_THREADS, os.cpu_count() or 1)
        self._threads = FairThreads(max(_LEAST_THREADS, cores), "text")

    async def tokenize(
        self,
        prompts: Sequence[Prompt],
        client_id: str = "",
        *,
        add_special_tokens: bool,
        for_answer: bool = True,
    ) -> list[list[int]]:
        """Return the token ids of each. for_answer: none may exceed the context. Raises
        `RequestError`."""

        one = partial(
            self._processor.inputs.tokenize,
            add_special_tokens=add_special_tokens,
            for_answer=for_answer,
        )
        # A prompt without a length is invalid; `tokenize` reports it.
        length = sum(len(prompt) for prompt in prompts if isinstance(prompt, Sized))
        if length <= _LONG_TEXT_CHARACTERS:
            return [one(prompt) for prompt in prompts]
        return await self._thread(client_id, lambda: [one(prompt) for prompt in prompts])

    async def tokenize_pairs(
        self,
        pairs: Sequence[tuple[str, str]],
        client_id: str,
        *,
        most: int | None,
        side: TruncationSide | None,
    ) -> list[list[int]]:
        """Return the token ids of each pair of texts, cut to `most` at a side. Raises
        `RequestError`."""
        one = partial(self._processor.inputs.tokenize_pair, most=most, side=side)
        length = sum(len(text) for pair in pairs for text in pair)
        return await self.run(
            client_id,
            lambda: [one(*pair) for pair in pairs],
            is_long=length > _LONG_TEXT_CHARACTERS,
        )

    async def detokenize(
        self, token_ids: Sequence[int], client_id: str = "", *, skip_special_tokens: bool
    ) -> str:
        """Return the text of these tokens. Raises `RequestError`."""
        work = partial(
            self._processor.inputs.detokenize, token_ids, skip_special_tokens=skip_special_tokens
        )
        if len(token_ids) <= _LONG_TEXT_CHARACTERS:
            return work()
        return await self._thread(client_id, work)

    async def run(self, client_id: str, work: Callable[[], _Result], *, is_long: bool) -> _Result:
        """Do other `work` on a request's text: at once, or on a thread if it is long. Raises the
        work's errors."""
        return await self._thread(client_id, work) if is_long else work()

    def close(self) -> None:
        """Accept no more work; work that waits for a thread gets `EngineDeadError`."""
        self._threads.close()

    async def _thread(self, client_id: str, work: Callable[[], _Result]) -> _Result:
        """Run `work` on a thread, when it is the client's turn."""
        return await self._threads.run(group_of(client_id), work, _ended)


def _ended() -> EngineDeadError:
    return EngineDeadError("the engine was shut down")
