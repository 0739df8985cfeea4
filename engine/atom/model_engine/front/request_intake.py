"""RequestIntake: turns prompts and sampling parameters into requests.

Checks everything that a request says, tokenises, and makes one request per answer. Whether the
engine takes requests now is not its business, nor how they reach a core. Owned by AsyncLLMEngine,
on whose loop it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from atom.images.item import PlacedImage
from atom.model_engine.front.async_text import AsyncText
from atom.model_engine.front.input_processor import InputProcessor, Prompt
from atom.model_engine.request import LoRARequest, Request
from atom.model_engine.wire.request_size import check_size
from atom.sampling_params import SamplingParams

_FEW_WORDS = 16  # each is tokenised twice
_SHORT_SCHEMA_CHARACTERS = 4096


class RequestIntake:
    def __init__(
        self,
        inputs: InputProcessor,
        text: AsyncText,
        numbers: Iterator[int],
        clock: Callable[[], float],
    ) -> None:
        """numbers: the requests' ids come from it."""
        self._inputs = inputs
        self._text = text
        self._numbers = numbers
        self._clock = clock

    async def requests_of(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        *,
        add_special_tokens: bool,
        priority: int,
        cache_salt: str,
        client_id: str,
        lora: LoRARequest | None,
        images: Sequence[Sequence[PlacedImage]] = (),
    ) -> list[Request]:
        """Make `params.n` requests for each prompt, prompt by prompt; they arrive now. images: of
        each prompt, by their places among its tokens. Raises `RequestError`."""
        arrive_time = self._clock()
        prepared = await self._text.run(
            client_id,
            partial(self._inputs.prepare, params),
            is_long=_takes_long(params),
        )
        # A prompt that is to be cut may be longer than the context.
        cut = params.truncate_prompt_tokens is not None
        tokens = await self._text.tokenize(
            prompts, client_id, add_special_tokens=add_special_tokens, for_answer=not cut
        )
        if cut:
            tokens = [self._inputs.truncated(token_ids, prepared) for token_ids in tokens]
        check_size(tokens, prepared)
        packed = [self._inputs.pack_images(own, prepared) for own in images] or [[] for _ in tokens]
        return [
            request
            for token_ids, own in zip(tokens, packed, strict=True)
            for request in self._inputs.build_requests(
                self._numbers,
                token_ids,
                prepared,
                arrive_time=arrive_time,
                priority=priority,
                cache_salt=cache_salt,
                client_id=client_id,
                lora=lora,
                images=own,
            )
        ]

    def arrived(self, handed: Request, lora: LoRARequest | None) -> Request:
        """Make of a request that another replica has begun one of this server's, which arrives
        now. lora: its adapter here."""
        return msgspec.structs.replace(
            handed, id=next(self._numbers), arrive_time=self._clock(), lora=lora
        )


def _takes_long(params: SamplingParams) -> bool:
    """Tell whether parameters take more than a millisecond or two to check."""
    shape = params.structured_outputs
    schema = "" if shape is None or not isinstance(shape.json, str) else shape.json
    return len(params.bad_words) > _FEW_WORDS or len(schema) > _SHORT_SCHEMA_CHARACTERS
