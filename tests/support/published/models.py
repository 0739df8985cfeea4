"""Models by their published chat templates: as a server would have them, without weights."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from atom.answer_parsing import AddedTokens, AnswerFormats
from atom.chat_template import ChatTemplate
from atom.entrypoints.openai.chat_prompt import chat_prompt
from atom.entrypoints.openai.protocol import ChatCompletionRequest
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.front.answer_notation import AnswerNotation, resolve_notation
from tools.published_templates import published

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<p>"}


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A template with the notation of its family."""

    name: str
    source: str
    notation: AnswerNotation

    @property
    def formats(self) -> AnswerFormats:
        return self.notation.formats

    @property
    def template(self) -> ChatTemplate:
        assert self.notation.template is not None
        return self.notation.template

    def prompt(self, request: ChatCompletionRequest) -> str:
        """The prompt of a chat, as the server makes it. Raises `RequestError`."""
        template = self.template

        def render(
            messages: Sequence[Mapping[str, Any]], *, images: int = 0, **options: Any
        ) -> str:
            assert images == 0, "a published template stands without its encoder"
            return template.render(messages, **options)

        processor = SimpleNamespace(
            render_chat=render, template_names=lambda name: name in template.variables
        )
        engine = SimpleNamespace(processor=processor, images=None)
        return chat_prompt(cast(AsyncLLMEngine, engine), request).text


def names() -> list[str]:
    """Of all templates. Raises `FetchError` where they cannot be had."""
    return list(published())


@functools.cache
def model(name: str) -> PublishedModel:
    source = published()[name]
    template = ChatTemplate(source, SPECIAL_TOKENS, place=name)
    notation = resolve_notation(template, "auto", "auto", AddedTokens())
    return PublishedModel(name, source, notation)
