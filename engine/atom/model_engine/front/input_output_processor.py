"""InputOutputProcessor: everything between text and tokens for one model, in one value.

The composition of tokenizer, chat template, input and output processor that both engines own.
Torch-free; knows neither sockets nor HTTP.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atom.answer_parsing import AddedTokens, AnswerFormats
from atom.answer_parsing.tool_parsers import AUTO
from atom.chat_template import ChatTemplate, load_chat_template
from atom.config import Config
from atom.errors import ModelError, RequestError
from atom.images.fetching import MediaSource
from atom.images.image_input import ImageBounds, ImageInput
from atom.images.media_rules import MediaRules
from atom.images.picture_messages import PictureSetup
from atom.images.picture_reader import PictureReader
from atom.images.placement import ImagePlacer
from atom.images.processing.families import image_processor
from atom.message_shape import Message
from atom.metrics import RequestMetrics
from atom.model_engine.front.answer_notation import resolve_notation
from atom.model_engine.front.input_processor import InputProcessor
from atom.model_engine.front.output_processor import OutputProcessor
from atom.model_engine.wire.request_images import MOST_IMAGE_BYTES
from atom.model_source.json_object import read_object
from atom.sizing.options.images import ImageOptions
from atom.tokenizer import Tokenizer, has_tokenizer
from atom.utils.host_memory import host_memory_bytes

logger = logging.getLogger(__name__)


class InputOutputProcessor:
    """Turn prompts into requests and tokens into text. inputs: prompt → Request. outputs: tokens →
    text. metrics: recorded by the outputs. answer_formats: how the model writes tool calls and
    reasoning in a chat."""

    def __init__(
        self,
        config: Config,
        *,
        chat_template_file: Path | None = None,
        tool_call_parser: str = AUTO,
        reasoning_parser: str = AUTO,
        template_kwargs: Mapping[str, Any] | None = None,
        media: MediaRules | None = None,
        image_memory_bytes: int | None = None,
    ) -> None:
        """Load the tokenizer and the chat template; raises `ModelError` or `ConfigError`.
        A model with random weights (load_dummy) may lack a tokenizer: token-id prompts only. The
        parsers are names from `tool_parsers`. template_kwargs: variables of the chat template that
        a conversation does not set. media: where images may come from besides data URLs.
        image_memory_bytes: of the images of open requests; None for the default of the host."""
        self._served_name = config.model.served_name
        self._end_token_ids = config.model.eos_token_ids
        self._is_one_file = config.model.path.is_file()
        self.tokenizer = _load_tokenizer(config)
        self._template_kwargs = dict(template_kwargs or {})
        self._chat_template: ChatTemplate | None = None
        if self.tokenizer is not None:
            folders = dict.fromkeys((config.model.tokenizer_path, config.model.path))
            found = (
                load_chat_template(each, self.tokenizer, chat_template_file) for each in folders
            )
            self._chat_template = next((template for template in found if template), None)
        notation = resolve_notation(
            self._chat_template, tool_call_parser, reasoning_parser, _added_tokens(self.tokenizer)
        )
        self.answer_formats: AnswerFormats = notation.formats
        self._chat_template, self._notes = notation.template, notation.notes
        if image_memory_bytes is None:
            image_memory_bytes = ImageOptions().memory_bytes(host_memory_bytes())
        self.images = _open_images(
            config, self.tokenizer, media or MediaRules(), image_memory_bytes
        )
        self._image_template = _image_template(self._chat_template, self.images)
        self.metrics = RequestMetrics()
        self.inputs = InputProcessor(config.model, self.tokenizer)
        self.outputs = OutputProcessor(self.tokenizer, self.metrics)

    def warn_of_misfits(self) -> None:
        """Log the features that cannot be served because the checkpoint's files do not match."""
        template = self._chat_template
        for level, note in self._notes:
            logger.log(level, "%s", note)
        for misfit in self.inputs.vocabulary.misfits(None if template is None else template.source):
            logger.warning("%s", misfit)
        if template is not None and self.tokenizer is not None:
            size, ends = self.inputs.vocabulary.size, self._end_token_ids
            tail = template.end_of_turn()
            misfit = unended_turn(tail, self.tokenizer, size, ends, one_file=self._is_one_file)
            if misfit:
                logger.warning("%s", misfit)

    @property
    def has_chat_template(self) -> bool:
        """Return whether conversations can be rendered as prompts."""
        return self._chat_template is not None

    @property
    def template_source(self) -> str | None:
        """Return the chat template's text; None if there is none."""
        return None if self._chat_template is None else self._chat_template.source

    def template_names(self, variable: str) -> bool:
        """Return whether the chat template reads a variable of this name."""
        return self._chat_template is not None and variable in self._chat_template.variables

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        extra: Mapping[str, Any] | None = None,
        images: int = 0,
    ) -> str:
        """Render the prompt of a conversation (special tokens included: encode it without adding
        any). images: how many of its parts are images, each of which becomes a mark. Raises
        `RequestError` if the template does not show each."""
        template = self._image_template if images else self._chat_template
        if images and template is None:
            raise RequestError(
                "the chat template has no place for images; start the server with another one, by "
                "--chat-template",
                param="messages",
            )
        if template is None:
            raise RequestError(
                f"{self._served_name} has no chat template; use /v1/completions, or start the "
                f"server with --chat-template FILE",
                param="messages",
            )
        text = template.render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            extra={**self._template_kwargs, **(extra or {})},
        )
        if images:
            assert self.images is not None
            self.images.check_marks(text, images)
        return text


def _open_images(
    config: Config, tokenizer: Tokenizer | None, media: MediaRules, memory_bytes: int
) -> ImageInput | None:
    """Return the input of images; None for a model that reads text alone, as it is served. media:
    where images may come from besides data URLs; memory_bytes: of the images of open requests.
    Raises `ModelError` for a checkpoint whose files contradict each other."""
    model, vision = config.model, config.model.facts.vision
    if vision is None or tokenizer is None:
        return None
    fields = read_object(model.path / "config.json")
    processor = image_processor(model.path, fields)
    if processor is None:
        raise ModelError(
            f"{model.path}: the processing of images of {fields.get('model_type')!r} is not known; "
            "start the server with --language-model-only"
        )
    return ImageInput(
        ImagePlacer(processor, tokenizer),
        PictureReader(PictureSetup(str(model.path), fields)),
        MediaSource(media),
        ImageBounds(
            most_images=model.max_images,
            most_tokens=vision.largest_tokens(model.max_model_len),
            image_bytes=vision.largest_pixel_bytes(model.max_model_len),
            prompt_bytes=min(MOST_IMAGE_BYTES, memory_bytes),
            memory_bytes=memory_bytes,
        ),
    )


def _image_template(
    template: ChatTemplate | None, images: ImageInput | None
) -> ChatTemplate | None:
    """Return the template that marks the places of images; None if it has none."""
    if template is None or images is None:
        return None
    return template.marking_images(images.placer.placeholder, images.mark)


def unended_turn(
    tail: str,
    tokenizer: Tokenizer,
    size: int,
    end_token_ids: Sequence[int],
    *,
    one_file: bool = False,
) -> str:
    """Return the fault if no token that the chat template writes after an answer ends one; "" if
    one does, or if it writes none. tail: the template's text after an answer. size: of the model's
    vocabulary, beyond which it generates nothing; one_file: the model is a GGUF file."""
    found = {index: text for index, text in tokenizer.added_tokens_in(tail).items() if index < size}
    if not found or not found.keys().isdisjoint(end_token_ids):
        return ""
    token_id, text = next(iter(found.items()))
    ends = ", ".join(map(str, end_token_ids)) or "none"
    remedy = (
        f"Use a file that has {token_id} as tokenizer.ggml.eot_token_id"
        if one_file
        else f"Add {token_id} to eos_token_id in generation_config.json"
    )
    return (
        f"the chat template ends the assistant's turn with {text!r} (id {token_id}), which is no "
        f"end token of this model (their ids: {ends}, from the checkpoint's configuration "
        f"and the tokenizer's eos_token): answers in chats go on behind it, up to max_tokens. "
        f"{remedy}, or let requests send it in stop_token_ids"
    )


def _load_tokenizer(config: Config) -> Tokenizer | None:
    folder = config.model.tokenizer_path
    if config.model.load_dummy and not has_tokenizer(folder):
        return None
    pooling = config.model.pooling
    return Tokenizer(folder, lowercases=pooling is not None and pooling.lowercases)


def _added_tokens(tokenizer: Tokenizer | None) -> AddedTokens:
    if tokenizer is None:
        return AddedTokens()
    added = tokenizer.added_tokens()
    ids = {text: tokenizer.special_token_id(text) for text, special in added.items() if special}
    special_ids = {text: token_id for text, token_id in ids.items() if token_id is not None}
    return AddedTokens(frozenset(added), special_ids)
