"""A conversation to the prompt its model was trained on: the checkpoint's own Jinja template.

Runs in Jinja's immutable sandbox with exactly the environment transformers gives a template, so
that a template behaves the same here; the values it sees are plain JSON. Templates come with the
model or from the operator of the server, never from a request. Called by the chat endpoint and the
offline API; knows nothing of tokens.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from atom.errors import ConfigError, ModelError, RequestError
from atom.tokenizer import SETTINGS_FILE, Tokenizer, read_object

TEMPLATE_FILE = "chat_template.jinja"
TOOL_TEMPLATE_FILE = "additional_chat_templates/tool_use.jinja"
PROCESSOR_FILE = "chat_template.json"
# What the renderer itself provides; extra arguments of a request may not replace them.
RESERVED_NAMES = frozenset({"messages", "tools", "add_generation_prompt"})

Message = Mapping[str, Any]


class ChatTemplate:
    """A compiled template with the model's special tokens. Thread-safe."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], *, tool_source: str | None = None
    ) -> None:
        """tool_source: the template for conversations with tools, where a model has its own.

        Raises `ModelError` on a syntax error."""
        self.source = tool_source or source  # of conversations with tools
        self._template = _compile(source)
        self._tool_template = _compile(tool_source) if tool_source else self._template
        self._special_tokens = dict(special_tokens)
        self.variables = _variables_of(source) | _variables_of(tool_source or "")

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. continue_final_message: it ends within the last message, as far as
        that came. extra: more variables (chat_template_kwargs).

        Raises `RequestError` when the template refuses the conversation or cannot render it."""
        for name in sorted(RESERVED_NAMES.intersection(extra or {})):
            raise RequestError(
                f"chat_template_kwargs may not set {name!r}", param="chat_template_kwargs"
            )
        template = self._tool_template if tools else self._template
        mark = token_hex(16) if continue_final_message else ""
        shown = [_with_reasoning(message) for message in messages]
        if mark:
            shown[-1] = {**shown[-1], "content": f"{shown[-1]['content']}{mark}"}
        try:
            text = template.render(
                {
                    **self._special_tokens,
                    **(extra or {}),
                    "messages": shown,
                    "tools": tools or None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        # A template is a program of the model's author: whatever it raises is about this input.
        except Exception as error:
            raise RequestError(
                f"the model's chat template cannot render these messages: {error}",
                param="messages",
            ) from error
        return text if not mark else _before(mark, text)


def _before(mark: str, text: str) -> str:
    """What is behind the mark ends the last message, which is to go on."""
    before, found, _ = text.rpartition(mark)
    if not found:
        raise RequestError(
            "continue_final_message: the model's chat template does not show the last message as "
            "it is",
            param="continue_final_message",
        )
    return before


def _with_reasoning(message: Message) -> Message:
    """Templates know an answer's reasoning by one of its names, clients send another."""
    names = ("reasoning_content", "thinking", "reasoning")
    found = next((message[name] for name in names if message.get(name) is not None), None)
    if found is None:
        return message
    return {"thinking": found, **message, "reasoning_content": found}


def load_chat_template(
    folder: Path, tokenizer: Tokenizer, override: Path | None = None
) -> ChatTemplate | None:
    """The template of `override`, else the folder's chat_template.jinja, else the one in
    chat_template.json (of multimodal models), else that in tokenizer_config.json; None when the
    model has none (a base model)."""
    special_tokens = tokenizer.special_tokens()
    if override is not None:
        return ChatTemplate(_read_override(override), special_tokens)
    file, with_tools = folder / TEMPLATE_FILE, folder / TOOL_TEMPLATE_FILE
    if file.is_file():
        tool_source = with_tools.read_text(encoding="utf-8") if with_tools.is_file() else None
        plain = file.read_text(encoding="utf-8")
        return ChatTemplate(plain, special_tokens, tool_source=tool_source)
    processor = read_object(folder / PROCESSOR_FILE)
    source = processor.get("chat_template") or tokenizer.settings.get("chat_template")
    if isinstance(source, list):  # several templates by name, such as "default" and "tool_use"
        named = {item["name"]: item["template"] for item in source}
        return ChatTemplate(
            _default_of(named, folder), special_tokens, tool_source=named.get("tool_use")
        )
    return ChatTemplate(source, special_tokens) if isinstance(source, str) else None


def _default_of(named: Mapping[str, str], folder: Path) -> str:
    if "default" not in named:
        raise ModelError(
            f"{folder / SETTINGS_FILE}: its chat templates are {', '.join(sorted(named))}, none is "
            f"named default; pass one with --chat-template"
        )
    return named["default"]


def _read_override(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--chat-template {path}: cannot be read ({error})") from error


def _variables_of(source: str) -> frozenset[str]:
    """The names that a template reads and does not set itself."""
    return frozenset(find_undeclared_variables(_environment().parse(source)))


def _compile(source: str) -> jinja2.Template:
    try:
        return _environment().from_string(source)
    except jinja2.TemplateError as error:
        raise ModelError(
            f"the chat template has a syntax error ({error}); "
            f"correct it, or pass another one with --chat-template"
        ) from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlocks]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationBlocks(jinja2.ext.Extension):
    """{% generation %} … {% endgeneration %}: marks for training, transparent here."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which no model was trained on."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)
