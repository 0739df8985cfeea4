"""Fields of requests that generate: how tokens are drawn, when an answer ends, and its form.

Bodies of chats, completions and responses are made of these parts. None means the default of the
model or of the server.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from atom.entrypoints.request_fields.request_body import StrictModel, Whole
from atom.sampling_params import MAX_BAD_WORDS, MAX_LOGIT_BIASES, TruncationSide


def _kind_of_stop(value: Any) -> str:
    return "<list>" if isinstance(value, list) else "<text>"


TextOrTexts = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[str], Field(fail_fast=True), Tag("<list>")],
    Discriminator(_kind_of_stop),
]


class SamplingFields(StrictModel):
    """Fields of the distribution that tokens are drawn from."""

    temperature: float | None = None
    """How freely tokens are drawn: 0 takes the likeliest each time, 1 the model's own odds."""
    top_p: float | None = None
    """Draw from the likeliest tokens whose odds add up to this share; 1 for all."""
    top_k: Whole | None = None
    """Draw from this number of the likeliest tokens; 0 or -1 for all."""
    min_p: float | None = None
    """Leave out tokens less likely than this share of the likeliest one's odds."""
    seed: Whole | None = None
    """Number that draws begin from: the same request with it has the same answer."""
    repetition_penalty: float | None = None
    """Above 1: tokens that the prompt or the answer has become less likely."""
    presence_penalty: float | None = None
    """Above 0: tokens that the answer has become less likely, however often it has them."""
    frequency_penalty: float | None = None
    """Above 0: tokens become less likely with each time that the answer has them."""
    logit_bias: Annotated[dict[str, float], Field(max_length=MAX_LOGIT_BIASES)] | None = None
    """Added to the logits of tokens, by their ids: -100 forbids one, 100 all but forces it."""
    stop: TextOrTexts | None = None
    """Text, or texts, at which an answer ends; the answer does not hold them."""
    ignore_eos: bool | None = None
    """Continue past the model's end token, to the most tokens of an answer."""


class AnswerFields(StrictModel):
    """Fields of the number, the length and the content of answers."""

    n: Whole | None = None
    """How many answers to each prompt; 1 unless it is sent."""
    max_tokens: Whole | None = None
    """The most tokens of an answer; in a chat as many as the context has room for, unless it is
    sent."""
    max_completion_tokens: Annotated[Whole, Field(ge=1)] | None = None
    """OpenAI's newer name of max_tokens."""
    n_predict: Annotated[Whole, Field(ge=-1)] | None = None
    """llama.cpp's name of max_tokens; -1: no bound."""
    min_tokens: Whole | None = None
    """An answer does not end before it has so many tokens."""
    stop_token_ids: Annotated[list[int], Field(fail_fast=True)] | None = None
    """Tokens at which an answer ends."""
    include_stop_str_in_output: bool | None = None
    """Let the answer hold the stop text that ended it."""
    no_stop_trim: bool | None = None
    """SGLang's name of include_stop_str_in_output."""
    allowed_token_ids: Annotated[list[int], Field(fail_fast=True)] | None = None
    """The only tokens that an answer may hold."""
    bad_words: Annotated[list[str], Field(fail_fast=True, max_length=MAX_BAD_WORDS)] | None = None
    """Texts that an answer never holds."""

    @property
    def includes_stop(self) -> bool:
        return bool(self.include_stop_str_in_output or self.no_stop_trim)

    def most_tokens(self, default: int | None) -> int | None:
        """Read the bound on an answer's tokens, by whichever name it is sent; None for as many as
        the context allows."""
        for asked in (self.max_completion_tokens, self.max_tokens):
            if asked is not None:
                return asked
        if self.n_predict is not None:
            return None if self.n_predict < 0 else self.n_predict
        return default


class TokenFields(StrictModel):
    """Fields of the tokens of a prompt, and of how an answer shows its tokens."""

    add_special_tokens: bool | None = None
    """Let the tokenizer add its marks, such as one of the beginning, to the prompt."""
    truncate_prompt_tokens: Whole | None = None
    """Cut the prompt to so many tokens; -1: to the size of the context."""
    truncation_side: TruncationSide | None = None
    """The end of the prompt that is cut: left unless it is sent."""
    skip_special_tokens: bool | None = None
    """Leave the model's marks out of the answer's text; true unless it is sent."""
    return_token_ids: bool | None = None
    """Return the ids of the prompt's and the answer's tokens."""
    return_tokens_as_token_ids: bool | None = None
    """Write tokens as token_id:N in log-probabilities."""
    return_timings: bool | None = None
    """Return where the time of the answer went, as `timings` beside usage."""
    prompt_logprobs: Whole | None = None
    """Return, for each token of the prompt, its log-probability and those of so many likelier
    ones."""

    @property
    def hides_special_tokens(self) -> bool:
        return self.skip_special_tokens is not False


class TransferFields(StrictModel):
    """Fields of a request whose prompt and answer are computed by different engines."""

    kv_transfer_params: dict[str, Any] | None = None
    """The object of routers that divide requests, with vLLM's names: do_remote_decode marks a
    prefill leg, and the object in its answer comes with the decode leg. Needs
    --kv-transfer-config."""


class StreamOptions(StrictModel):
    include_usage: bool | None = None
    """End the stream with an event that counts the tokens."""
    continuous_usage_stats: bool | None = None
    """With include_usage: count the tokens so far in every event."""


class StreamFields(StrictModel):
    """Fields of the events of a stream."""

    stream: bool | None = None
    """Send the answer as server-sent events while it is generated."""
    stream_options: StreamOptions | None = None
    """Further content of a stream."""

    @property
    def wants_usage_chunk(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def wants_running_usage(self) -> bool:
        options = self.stream_options
        return (
            self.wants_usage_chunk and options is not None and bool(options.continuous_usage_stats)
        )
