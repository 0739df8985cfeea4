"""StructuredOutputsParams: the shape that one answer must have, checked once when it is made.

Exactly one of a JSON schema, any JSON object, a regular expression, a grammar, a list of choices.
Names are vLLM's. Everything that can be refused without compiling is refused here: kinds, sizes,
depth, and keywords of a schema that would not be enforced. Torch-free; crosses the wire as part of
SamplingParams.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import msgspec

from atom.errors import RequestError
from atom.structured_outputs.json_schema import check_schema

MAX_SCHEMA_CHARS = 64 * 1024
MAX_GRAMMAR_CHARS = 64 * 1024
MAX_REGEX_CHARS = 4096
MAX_CHOICES = 1024
MAX_CHOICE_CHARS = 1024
_ASKED_KINDS = ("json", "json_object", "regex", "grammar", "choice")
_KINDS = (*_ASKED_KINDS, "structural_tag")  # the last is made by the server only
_ANY_OBJECT = '{"type": "object"}'


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """The source of a grammar, and the key of its compiled form: equal text gives an equal grammar.

    kind: the notation of `text`; of choices, a list as JSON. compact: JSON without white space
    between its parts, except one blank after each comma and colon.
    """

    kind: Literal["json", "regex", "grammar", "choice", "structural_tag"]
    text: str
    compact: bool = False


class StructuredOutputsParams(msgspec.Struct, frozen=True, kw_only=True):
    """The structure of an answer. Raises `RequestError` for one that cannot be enforced.

    json: a JSON schema, as an object or its text, which is stored; properties come in the
    schema's order, without others unless the schema has additionalProperties.
    json_object: any JSON object.
    regex: the whole answer matches it (ECMA-262's: no lookaround, no back-references).
    grammar: EBNF in llama.cpp's notation (GBNF) with a rule named root, or Lark's with start.
    choice: the answer is one of these texts.
    structural_tag: xgrammar's, as JSON text: schemas between fixed texts. The server makes it, with
    schemas that it has checked.
    disable_any_whitespace: JSON is on one line, with single blanks.
    field: the client's name of this field; errors name it.
    """

    json: str | dict[str, Any] | bool | None = None
    json_object: bool = False
    regex: str | None = None
    grammar: str | None = None
    choice: Sequence[str] | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    field: str = "structured_outputs"

    def __post_init__(self) -> None:
        asked = [kind for kind in _KINDS if getattr(self, kind) not in (None, False)]
        if self.json is False:  # the schema that no value satisfies, not an absent one
            asked.insert(0, "json")
        if len(asked) != 1:
            found = " and ".join(asked) or "none"
            raise self.refusal(f"give exactly one of {', '.join(_ASKED_KINDS)}; got {found}")
        if self.json is not None:
            text = self._schema_text()
            self._check_text("the JSON schema", text, MAX_SCHEMA_CHARS)
            # As text it crosses the wire with any numbers: a message's have 64 bits.
            msgspec.structs.force_setattr(self, "json", text)
        elif self.regex is not None:
            self._check_text("the regular expression", self.regex, MAX_REGEX_CHARS)
        elif self.grammar is not None:
            self._check_text("the grammar", self.grammar, MAX_GRAMMAR_CHARS)
        elif self.choice is not None:
            self._check_choice(self.choice)

    def spec(self) -> GrammarSpec:
        """Return the source of the grammar to compile."""
        if self.regex is not None:
            return GrammarSpec("regex", self.regex)
        if self.grammar is not None:
            return GrammarSpec("grammar", self.grammar)
        if self.structural_tag is not None:
            return GrammarSpec("structural_tag", self.structural_tag)
        if self.choice is not None:
            return GrammarSpec("choice", json.dumps(list(self.choice), ensure_ascii=False))
        text = _ANY_OBJECT if self.json is None else self._schema_text()
        return GrammarSpec("json", text, compact=self.disable_any_whitespace)

    def refusal(self, reason: str) -> RequestError:
        """Return the error for a structure that is not supported."""
        return RequestError(f"{self.field}: {reason}", param=self.field)

    def check_schema(self) -> None:
        """Raise `RequestError` if the JSON schema plainly has a keyword that is not enforced; the
        compile step finds the rest, which takes longer. This check is separate from the others
        because it reads the whole schema: once, before the request is queued."""
        if self.json is not None:
            try:
                _check_schema_text(self._schema_text())
            except ValueError as error:
                raise self.refusal(str(error)) from None

    def _schema_text(self) -> str:
        """Return the schema as JSON text, in its own order, since properties keep it."""
        if isinstance(self.json, str):
            return self.json
        try:
            return json.dumps(self.json, ensure_ascii=False)
        except (ValueError, TypeError, RecursionError) as error:
            raise self.refusal(f"the JSON schema is no JSON value: {error}") from None

    def _check_text(self, name: str, text: str, limit: int) -> None:
        if not text:
            raise self.refusal(f"{name} is empty")
        if len(text) > limit:
            raise self.refusal(f"{name} has {len(text)} characters; at most {limit} are compiled")
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            raise self.refusal(f"{name} holds a character that no text has (NUL or a surrogate)")

    def _check_choice(self, choices: Sequence[str]) -> None:
        if isinstance(choices, str) or not all(isinstance(text, str) for text in choices):
            raise self.refusal("choice must be a list of texts")
        if not 0 < len(choices) <= MAX_CHOICES:
            raise self.refusal(f"choice must have 1 to {MAX_CHOICES} texts, got {len(choices)}")
        for text in choices:
            self._check_text("a choice", text, MAX_CHOICE_CHARS)
        if sum(map(len, choices)) > MAX_GRAMMAR_CHARS:
            raise self.refusal(
                f"the choices together have more than {MAX_GRAMMAR_CHARS} characters"
            )


@lru_cache(maxsize=64)
def _check_schema_text(text: str) -> None:
    check_schema(text)
