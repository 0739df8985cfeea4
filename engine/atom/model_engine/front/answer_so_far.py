"""AnswerSoFar: the state of an open answer, from which another engine can continue it.

Every draw is a function of seed, position and logits, so an answer that continues after its tokens
is the answer that would have followed. Stored per open request if another place can continue it;
prompts as packed integers, since they may be long and many.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec

from atom.model_engine.request import Request
from atom.model_engine.transfer_legs import DecodeLeg

_MOST_LOSSES = 1  # of an answer's engines: its request may be the cause of their ends


class AnswerSoFar:
    """Hold a request and the received tokens of its answer. tokens: includes those that a stop
    string hides."""

    __slots__ = ("_asked", "_num_losses", "_prompt", "tokens")

    def __init__(self, request: Request) -> None:
        self._asked = msgspec.structs.replace(request, prompt_token_ids=[], output_token_ids=[])
        if isinstance(request.kv_transfer, DecodeLeg):  # a ticket is read once
            self._asked = msgspec.structs.replace(self._asked, kv_transfer=None)
        self._prompt = array("i", request.prompt_token_ids)
        self.tokens = array("i", request.output_token_ids)
        self._num_losses = request.num_losses

    def add(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)

    def survives(self) -> bool:
        """Count a loss; return whether the answer may continue after it."""
        self._num_losses += 1
        return self._num_losses <= _MOST_LOSSES

    def request(self, number: int, *, tells_prompt: bool) -> Request:
        """Make the request for the rest of the answer. tells_prompt: the prompt's
        log-probabilities are still to come, if they were asked for."""
        params = self._asked.params
        if not tells_prompt and params.prompt_logprobs is not None:
            params = msgspec.structs.replace(params, prompt_logprobs=None)
        return msgspec.structs.replace(
            self._asked,
            id=number,
            prompt_token_ids=self._prompt.tolist(),
            output_token_ids=self.tokens.tolist(),
            params=params,
            num_losses=self._num_losses,
        )
