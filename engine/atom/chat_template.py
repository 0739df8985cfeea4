"""Render a conversation as the prompt its model was trained on, with the checkpoint's Jinja
template.

The template runs in the environment that transformers gives it, within bounds
(template_sandbox.py). It gets messages in the shape that it shows whole (message_shape.py).
Templates come with the model or from the operator of the server, never from a request. Called by
the chat endpoint and the offline API; knows nothing of tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import jinja2
from jinja2.meta import find_undeclared_variables

from atom.errors import ConfigError, ModelError, RequestError
from atom.message_shape import (
    DroppedTextError,
    Filled,
    MessageShape,
    Shown,
    TemplateSigns,
    ToolPlace,
    WriteCalls,
    find_shape,
    read_signs,
)
from atom.model_source.json_object import read_object
from atom.template_sandbox import (
    OWN_NAMES,
    TemplateBoundsError,
    mentions,
    render_within_bounds,
    strftime_now,
    template_environment,
)
from atom.tokenizer import SETTINGS_FILE, Tokenizer

TEMPLATE_FILE = "chat_template.jinja"
TOOL_TEMPLATE_FILE = "additional_chat_templates/tool_use.jinja"
PROCESSOR_FILE = "chat_template.json"
# Variables of the renderer itself; extra arguments of a request may not replace them.
RESERVED_NAMES = frozenset({"messages", "tools", "add_generation_prompt"})
_KEY = "chat_template"
_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
# What the servers of some models give their templates; of tools that are given, see tool_shape.py.
_OF_SERVERS: Mapping[str, Callable[[], str]] = {
    "datetime": lambda: strftime_now("%Y-%m-%d"),  # no time: equal prompts stay cached for a day
    "functions": lambda: "[]",
}
# Content and reasoning of an answer as a model wrote it.
ReadAnswer = Callable[[str], tuple[str, str]]


class ChatTemplate:
    """A compiled template with the model's special tokens. Thread-safe."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        *,
        tool_source: str | None = None,
        place: str = "the chat template",
    ) -> None:
        """tool_source: the template for conversations with tools, if a model has a separate one;
        place: of the template, for errors.

        Raises `ModelError` on a syntax error, and for a template that would drop the user's text or
        a call.
        """
        self.source = tool_source or source  # of conversations with tools
        self._place = place
        self._reader: tuple[str, ReadAnswer] | None = None
        self._special_tokens = dict(special_tokens)
        plain, with_tools = _compile(source), _compile(tool_source or "")
        self.variables = _variables_of(source) | _variables_of(tool_source or "")
        self._plain = self._shaped(source, plain)
        self._with_tools = self._shaped(tool_source, with_tools) if tool_source else self._plain
        self.signs = self._with_tools.signs
        self._sources = (source, tool_source or source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """Render the prompt's text. Arguments of calls may be objects or any text that a client
        sends back. continue_final_message: the prompt ends within the last message, so that the
        model continues it. extra: more variables (chat_template_kwargs).

        Raises `RequestError` when the template refuses the conversation or cannot render it.
        """
        for name in sorted(RESERVED_NAMES.intersection(extra or {})):
            raise RequestError(
                f"chat_template_kwargs may not set {name!r}", param="chat_template_kwargs"
            )
        found = self._with_tools if tools else self._plain
        mark = token_hex(16) if continue_final_message else ""
        read = [_with_reasoning(self._read(message)) for message in messages]
        if mark:
            read[-1] = {**read[-1], "content": f"{read[-1]['content']}{mark}"}
        variables = {**(extra or {}), "add_generation_prompt": add_generation_prompt}
        refusal: Exception | None = None
        # Tools as they were sent, else with the fields that the template misses in them.
        for filled in Filled if tools else (Filled.AS_SENT,):
            try:
                shown = self._variables(found.shape.shown(read, tools, filled), variables)
                text = render_within_bounds(found.template, shown)
                return text if not mark else _before(mark, text)
            except RequestError:
                raise
            except TemplateBoundsError as error:
                refusal = error
                break
            # A template is a program of the model's author: its errors are about this input.
            except Exception as error:
                refusal = refusal or error
        raise RequestError(
            f"the model's chat template cannot render these messages: {refusal}", param="messages"
        ) from refusal

    def _read(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        content = message.get("content")
        if self._reader is None or message.get("role") != "assistant":
            return message
        mark, read = self._reader
        if not isinstance(content, str) or mark not in content:
            return message
        said, thought = read(content)
        known = any(message.get(name) for name in _REASONING_NAMES)
        return {**message, "content": said, **({"reasoning": thought} if not known else {})}

    @property
    def left_out(self) -> tuple[str, ...]:
        """List the parts that the template shows in no form, of conversations with tools."""
        return self._with_tools.shape.left_out

    @property
    def tools_in_text(self) -> bool:
        """Return whether the template does not show tools, so that the system's message describes
        them."""
        return self._with_tools.shape.tools.place is ToolPlace.SYSTEM_TEXT

    @property
    def tells_tools(self) -> bool:
        """Return whether the template shows tools itself, or has a place for calls."""
        return self._with_tools.shape.calls.has_place or not self.tools_in_text

    def reading_answers(self, mark: str, read: ReadAnswer) -> ChatTemplate:
        """Copy the template, with answers that a client kept as the model wrote them, markup and
        all, read again. mark: of the markup, which templates refuse within a content."""
        made = copy.copy(self)
        made._reader = (mark, read)
        return made

    def writing_calls(self, write: WriteCalls, *, single: bool) -> ChatTemplate:
        """Copy the template, with calls written as the model's family does wherever it has no place
        for calls, or for tools. single: one call to a message."""
        made = copy.copy(self)
        made._plain = self._plain.writing_calls(write, single=single)
        made._with_tools = self._with_tools.writing_calls(write, single=single)
        return made

    def marking_images(self, placeholder: str, mark: str) -> ChatTemplate | None:
        """Copy the template, with `mark` written wherever it writes the placeholder of an image;
        None if it has no place for images."""
        plain, with_tools = self._sources
        if placeholder not in plain:
            return None
        made = copy.copy(self)
        marked = (source.replace(placeholder, mark) for source in (plain, with_tools))
        made._plain, made._with_tools = (
            replace(shaped, template=_compile(source))
            for shaped, source in zip((self._plain, self._with_tools), marked, strict=True)
        )
        return made

    def end_of_turn(self) -> str:
        """Return the text that the template writes after an assistant's message; "" if the template
        refuses to render one."""
        mark = token_hex(16)
        turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": mark}]
        try:
            text = self.render(turns, add_generation_prompt=False)
        except RequestError:
            return ""
        return text.rpartition(mark)[2] if mark in text else ""

    def _variables(self, shown: Shown, more: Mapping[str, Any]) -> dict[str, Any]:
        """Return the template's variables by name."""
        messages = _GivenList(shown.messages)
        given = {name: make() for name, make in _OF_SERVERS.items() if name in self.variables}
        found = {**given, **self._special_tokens, **more, "messages": messages, "tools": None}
        return {**found, **shown.variables}

    def _shaped(self, source: str, template: jinja2.Template) -> _ShapedTemplate:
        def render(shown: Shown, more: Mapping[str, Any]) -> str | None:
            try:
                given = {**more, "add_generation_prompt": True}
                return render_within_bounds(template, self._variables(shown, given))
            except Exception:  # of a template's own kind, as above
                return None

        try:
            with_calls = mentions(source, "tool_calls")
            shape = find_shape(render, mentions_calls=with_calls, variables=_variables_of(source))
            return _ShapedTemplate(template, shape, read_signs(render, shape))
        except DroppedTextError as error:
            raise ModelError(
                f"{self._place} {error}: no form of a message is shown whole; correct it, or pass "
                "another one with --chat-template"
            ) from error


class _GivenList(list[Any]):
    """A list that is not the template's own, which it cannot change."""


@dataclass(frozen=True, slots=True)
class _ShapedTemplate:
    template: jinja2.Template
    shape: MessageShape
    signs: TemplateSigns

    def writing_calls(self, write: WriteCalls, *, single: bool) -> _ShapedTemplate:
        shape = self.shape
        if not shape.calls.has_place:
            calls = replace(shape.calls, single=single)
            shape = replace(shape, calls=calls, write_calls=write)
        if shape.tools.place is ToolPlace.SYSTEM_TEXT:
            example = write([("FUNCTION", {"PARAMETER": "VALUE"})])
            shape = replace(shape, tools=replace(shape.tools, calls=example))
        return replace(self, shape=shape)


def _before(mark: str, text: str) -> str:
    """Return the text before the mark that ends the last message, so that the model continues the
    message. Raises `RequestError` if the template does not show the mark."""
    before, found, _ = text.rpartition(mark)
    if not found:
        raise RequestError(
            "continue_final_message: the model's chat template does not show the last message as "
            "it is",
            param="continue_final_message",
        )
    return before


def _with_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Copy a message's reasoning to the names that templates read; clients send it under others."""
    found = next(
        (message[name] for name in _REASONING_NAMES if message.get(name) is not None), None
    )
    if found is None:
        return message
    return {"thinking": found, **message, "reasoning_content": found}


def load_chat_template(
    folder: Path, tokenizer: Tokenizer, override: Path | None = None
) -> ChatTemplate | None:
    """Load the template of `override`, else the folder's chat_template.jinja, else the one in
    chat_template.json (of multimodal models), else that in tokenizer_config.json; return None if
    the model has none (a base model). Raises `ModelError` or `ConfigError` naming the file."""
    special_tokens = tokenizer.special_tokens()
    if override is not None:
        place = f"--chat-template {override}"
        return ChatTemplate(_read_override(override), special_tokens, place=place)
    file, with_tools = folder / TEMPLATE_FILE, folder / TOOL_TEMPLATE_FILE
    if file.is_file():
        tool_source = _read_template(with_tools) if with_tools.is_file() else None
        plain = _read_template(file)
        return ChatTemplate(plain, special_tokens, tool_source=tool_source, place=str(file))
    for settings_file, source in (
        (folder / PROCESSOR_FILE, read_object(folder / PROCESSOR_FILE).get(_KEY)),
        (folder / SETTINGS_FILE, tokenizer.settings.get(_KEY)),
    ):
        if source:
            one = isinstance(source, str)
            named = {"default": source} if one else _named_templates(source, settings_file)
            return ChatTemplate(
                _default_of(named, settings_file),
                special_tokens,
                tool_source=named.get("tool_use"),
                place=f"{folder if folder.is_file() else settings_file}: {_KEY}",
            )
    return None


def _named_templates(source: Any, place: Path) -> dict[str, str]:
    """Read several templates by name, such as "default" and "tool_use"."""
    items = source if isinstance(source, list) else [source]
    found: dict[str, str] = {}
    for item in items:
        name, template = (
            (item.get("name"), item.get("template")) if isinstance(item, dict) else (None, None)
        )
        if not isinstance(name, str) or not isinstance(template, str):
            raise ModelError(
                f"{place}: {_KEY} must be a text, or a list of objects with the texts name and "
                f"template, and it holds {str(item)[:60]!r}; correct it, or pass a template with "
                "--chat-template"
            )
        found[name] = template
    return found


def _default_of(named: Mapping[str, str], place: Path) -> str:
    if "default" not in named:
        raise ModelError(
            f"{place}: its chat templates are {', '.join(sorted(named))}, none is "
            f"named default; pass one with --chat-template"
        )
    return named["default"]


def _read_template(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{file}: cannot be read as UTF-8 text ({error}); download it again, or pass a "
            "template with --chat-template"
        ) from error


def _read_override(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--chat-template {path}: cannot be read ({error})") from error


def _variables_of(source: str) -> frozenset[str]:
    """Return the names that a template reads and does not set itself."""
    names = find_undeclared_variables(template_environment().parse(source))
    return frozenset(name for name in names if not name.startswith(OWN_NAMES))


def _compile(source: str) -> jinja2.Template:
    try:
        return template_environment().from_string(source)
    except (jinja2.TemplateError, RecursionError) as error:
        raise ModelError(
            f"the chat template has a syntax error ({error}); "
            f"correct it, or pass another one with --chat-template"
        ) from error
