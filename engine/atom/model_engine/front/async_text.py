"""AsyncText: text to tokens and back for an event loop that others wait on too.

What is short is done at once; what is long, also by being many, on a thread: the tokenizer lets
others run meanwhile. Owned by AsyncLLMEngine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Sized
from functools import partial

from atom.model_engine.front.input_output_processor import InputOutputProcessor
from atom.model_engine.front.input_processor import Prompt

_LONG_TEXT_CHARACTERS = 8192  # or as many tokens


class AsyncText:
    def __init__(self, processor: InputOutputProcessor) -> None:
        self._processor = processor

    async def tokenize(
        self, prompts: Sequence[Prompt], *, add_special_tokens: bool, for_answer: bool = True
    ) -> list[list[int]]:
        """Token ids of each. for_answer: none may exceed the context. Raises `RequestError`."""

        def work() -> list[list[int]]:
            inputs = self._processor.inputs
            return [
                inputs.tokenize(
                    prompt, add_special_tokens=add_special_tokens, for_answer=for_answer
                )
                for prompt in prompts
            ]

        # One without a length is no prompt; `work` says so.
        if (
            sum(len(prompt) for prompt in prompts if isinstance(prompt, Sized))
            > _LONG_TEXT_CHARACTERS
        ):
            return await asyncio.to_thread(work)
        return work()

    async def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of these tokens. Raises `RequestError`."""
        detokenize = partial(
            self._processor.inputs.detokenize, skip_special_tokens=skip_special_tokens
        )
        if len(token_ids) > _LONG_TEXT_CHARACTERS:
            return await asyncio.to_thread(detokenize, token_ids)
        return detokenize(token_ids)
