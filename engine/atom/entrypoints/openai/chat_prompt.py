"""A conversation as the API has it to the text that the model reads, through its chat template.

Messages and tools become the plain values that templates know. A short conversation is rendered at
once, a long one on a thread, whose turn AsyncText finds. Used by /v1/chat/completions and
/tokenize, so that both see the same prompt; starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from atom.entrypoints.http.long_requests import is_long
from atom.entrypoints.openai.image_parts import (
    below_results,
    has_images,
    not_read,
    read_images,
    shown_parts,
)
from atom.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    ChatMessage,
    TemplateFields,
    TextPart,
    TokenizeRequest,
    UnreadPart,
)
from atom.entrypoints.openai.thinking import template_switches
from atom.entrypoints.openai.tools import AllowedChoice, NamedTool
from atom.errors import RequestError
from atom.images.item import ImageItem, PlacedImage
from atom.images.placement import PlacedPrompt
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.front.input_processor import Prompt

_Result = TypeVar("_Result")


async def chat_work(
    engine: AsyncLLMEngine, client_id: str, parts: object, work: Callable[[], _Result]
) -> _Result:
    """Do the `work` on a conversation for a client. parts: requests, or lists of messages, that it
    reads. Raises the work's errors."""
    return await engine.text.run(client_id, work, is_long=is_long(parts))


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation. text: with one placeholder for each image; placed: its tokens, if it
    has images, or words that spell a token of images; None if the text says it all."""

    text: str
    placed: PlacedPrompt | None = None

    @property
    def prompt(self) -> Prompt:
        """Return the text or the token ids that the engine reads."""
        return self.text if self.placed is None else self.placed.token_ids

    @property
    def images(self) -> tuple[PlacedImage, ...]:
        """Return the images, by their places among the tokens."""
        return () if self.placed is None else self.placed.images


async def rendered_chat(
    engine: AsyncLLMEngine, client_id: str, request: ChatCompletionRequest | TokenizeRequest
) -> ChatPrompt:
    """Read the images of a conversation and render it, as `chat_prompt` does. Raises
    `RequestError`."""
    async with read_images(engine, client_id, request.messages) as items:
        work = partial(chat_prompt, engine, request, items)
        return await chat_work(engine, client_id, request, work)


def chat_prompt(
    engine: AsyncLLMEngine,
    request: ChatCompletionRequest | TokenizeRequest,
    items: Sequence[ImageItem] = (),
) -> ChatPrompt:
    """Render the conversation as the model reads it. items: its images, if the model reads
    images. Raises `RequestError`."""
    messages = request.messages or []
    continues = continues_message(request)
    if request.documents and not engine.processor.template_names("documents"):
        raise RequestError(
            "documents: the chat template of this model has no place for them; write them into a "
            "message",
            param="documents",
        )
    shows = bool(items)
    render = partial(
        engine.processor.render_chat,
        tools=_template_tools(request),
        add_generation_prompt=request.add_generation_prompt is not False and not continues,
        continue_final_message=continues,
        extra=_template_variables(request),
        images=len(items),
    )
    shown = [_template_message(index, item, shows=shows) for index, item in enumerate(messages)]
    of_results = shows and any(item.role == "tool" and has_images(item) for item in messages)
    text = _with_results_images(render, shown) if of_results else render(shown)
    return _tokenised(engine, request, text, items)


def _with_results_images(render: Callable[..., str], shown: list[dict[str, Any]]) -> str:
    """Render images where tools' results have them, or below the results if the template does not
    show them there. Raises `RequestError`."""
    with suppress(RequestError):
        return render(shown)
    return render(below_results(shown))


def _tokenised(
    engine: AsyncLLMEngine,
    request: ChatCompletionRequest | TokenizeRequest,
    text: str,
    items: Sequence[ImageItem],
) -> ChatPrompt:
    """Place the images of a conversation, and keep words from becoming tokens of images."""
    images = engine.images
    if images is None:
        return ChatPrompt(text)
    special = bool(request.add_special_tokens)
    placed = engine.processor.inputs.place_images(images, text, items, add_special_tokens=special)
    return ChatPrompt(text.replace(images.mark, images.placer.placeholder), placed)


def continues_message(request: ChatCompletionRequest | TokenizeRequest) -> bool:
    """Return whether the answer continues the last message. Raises `RequestError` if it cannot."""
    messages = request.messages or []
    for index, message in enumerate(messages[:-1]):
        if message.prefix:
            raise RequestError(
                f"messages[{index}].prefix: only the last message can be the beginning of the "
                f"answer",
                param="messages",
            )
    asked = bool(request.continue_final_message or (messages and messages[-1].prefix))
    if asked and request.add_generation_prompt:
        raise RequestError(
            "continue_final_message and add_generation_prompt cannot both be true: the answer goes "
            "on with the last message, or is one of its own",
            param="continue_final_message",
        )
    if asked and (not messages or messages[-1].role != "assistant" or not messages[-1].content):
        raise RequestError(
            "continue_final_message: the last message must be the assistant's, with a content to "
            "go on with",
            param="continue_final_message",
        )
    return asked


def _template_message(index: int, message: ChatMessage, *, shows: bool) -> dict[str, Any]:
    """Return a message as chat templates know it: plain values, only the keys that it has. shows:
    the conversation has images that the model reads."""
    content = message.content
    if content is None:
        if not (message.tool_calls or message.reasoning or message.reasoning_content):
            raise RequestError(
                f"messages[{index}].content: is required for role {message.role}",
                param="messages",
            )
        content = ""
    shown: str | list[dict[str, str]]
    if isinstance(content, str):
        shown = content
    elif shows and has_images(message):
        shown = shown_parts(index, message)
    else:
        if message.role != "tool":
            _check_parts(index, content)
        shown = "\n".join(part.text for part in content)
    # Templates know "system"; "developer" is its newer name in the API.
    role = "system" if message.role == "developer" else message.role
    found: dict[str, Any] = {"role": role, "content": shown}
    for key in ("name", "tool_call_id"):
        value = getattr(message, key)
        if value is not None:
            found[key] = value
    reasoning = message.reasoning_content if message.reasoning is None else message.reasoning
    if reasoning is not None:
        found["reasoning"] = reasoning
    if message.tool_calls:
        found["tool_calls"] = [call.model_dump() for call in message.tool_calls]
    return found


def _check_parts(index: int, parts: Sequence[TextPart | UnreadPart]) -> None:
    """Refuse a picture or document that is no result of a tool. Raises `RequestError`."""
    for number, part in enumerate(parts):
        if isinstance(part, UnreadPart):
            raise not_read(index, number, part, reads="text")


def _template_tools(request: TemplateFields) -> list[dict[str, Any]] | None:
    """List the tools for the template: of a choice among the tools only the callable ones, and none
    whose loading is deferred: an agent shows it in a message, once it is requested."""
    choice = request.tool_choice
    if choice == "none":
        return None
    shown = [tool for tool in request.tools or () if tool.get("defer_loading") is not True]
    if isinstance(choice, AllowedChoice):
        names = {tool.name for tool in request.callable_tools()}
        shown = [tool for tool in shown if tool["function"]["name"] in names]
    return shown or None


def _template_variables(request: TemplateFields) -> dict[str, Any]:
    variables = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", request.reasoning_effort)
    for name, value in template_switches(request).items():
        variables.setdefault(name, value)
    if request.documents:
        variables.setdefault("documents", request.documents)
    choice = request.tool_choice
    if choice is not None:
        plain = choice.model_dump() if isinstance(choice, NamedTool) else request.choice_mode
        variables.setdefault("tool_choice", plain)
    return variables
