"""Write structural tags (xgrammar's formats, as clients and the parsers' families write them) in
the grammar library's notation: rules over texts, tokens, expressions and schemas.

The library reads a text token by token of its own (lexemes), the longest first. So an expression is
written together with the fixed text behind it, and ends where that text first appears; free text
ends at its mark. Pure; raises ValueError for a format that is not kept, by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from atom.structured_outputs.bare_texts import BareText, bare_texts
from atom.structured_outputs.ebnf import tidied
from atom.structured_outputs.json_schema import (
    Check,
    library_schema,
    read_schema,
    without_strings,
)
from atom.structured_outputs.json_schema.references import SchemaDocument
from atom.structured_outputs.regex import literal_text, spanned

Part = dict[str, Any]
ToRules = Callable[[str], str]
_ANY = "(?s:.*)"
_NOTHING = '""'


class TagGrammar:
    """Collect the rules and sub-grammars of one tag. check: returns the library's reason against a
    schema; to_rules: turns an EBNF grammar into the library's rules."""

    def __init__(self, check: Check, to_rules: ToRules) -> None:
        self._check = check
        self._to_rules = to_rules
        self._rules: list[str] = []
        self._named: dict[str, str] = {}
        self._grammars: list[dict[str, Any]] = []
        self._writers: dict[str, Callable[[Part], str]] = {
            "const_string": self._const_string,
            "token": self._token,
            "or": self._or,
            "optional": self._optional,
            "plus": self._plus,
            "star": self._star,
            "grammar": self._grammar,
            "tag": self._tag,
            "tags_with_separator": self._tags_with_separator,
            "triggered_tags": self._triggered_tags,
            "token_triggered_tags": self._token_triggered_tags,
        }

    def grammar(self, part: Part) -> list[dict[str, Any]]:
        """Return the library's grammars of a format, the first of which is the whole answer."""
        start = self._written(part)
        rules = "\n".join([f"start: {start}", *self._rules])
        return [{"lark_grammar": rules}, *self._grammars]

    # ---- formats ------------------------------------------------------------------------------

    def _written(self, part: Part) -> str:
        return self._sequence([part])

    def _sequence(self, parts: Sequence[Part]) -> str:
        flat = list(_flat(parts))
        found: list[str] = []
        at = 0
        while at < len(flat):
            part = flat[at]
            at += 1
            if part["type"] not in _ENDED:
                found.append(self._one(part))
                continue
            behind = ""
            while at < len(flat) and flat[at]["type"] == "const_string":
                behind += flat[at]["value"]
                at += 1
            found.append(self._ended(part, behind))
        return " ".join(one for one in found if one != _NOTHING) or _NOTHING

    def _one(self, part: Part) -> str:
        """Write one format of those that need not know the text behind them."""
        kind = part["type"]
        if kind not in self._writers:
            raise ValueError(
                f"a structural tag's format {kind!r} is not kept by this server; write one of "
                f"{', '.join(sorted((*self._writers, *_ENDED, 'sequence')))}"
            )
        return self._writers[kind](part)

    def _const_string(self, part: Part) -> str:
        return _text(part["value"])

    def _token(self, part: Part) -> str:
        if not isinstance(part["token"], int):
            raise ValueError("a structural tag's token is kept by its id only; write the number")
        return f"<[{part['token']}]>"

    def _or(self, part: Part) -> str:
        return self._rule(" | ".join(self._written(one) for one in part["elements"]))

    def _optional(self, part: Part) -> str:
        return f"({self._written(part['content'])})?"

    def _plus(self, part: Part) -> str:
        return f"({self._written(part['content'])})+"

    def _star(self, part: Part) -> str:
        return f"({self._written(part['content'])})*"

    def _grammar(self, part: Part) -> str:
        return self._sub({"lark_grammar": self._to_rules(tidied(part["grammar"]))})

    def _tag(self, part: Part) -> str:
        ends = part["end"] if isinstance(part["end"], list) else [part["end"]]
        begin = _as_parts(part["begin"])
        options = [self._sequence([*begin, part["content"], *_as_parts(end)]) for end in ends]
        return options[0] if len(options) == 1 else self._rule(" | ".join(options))

    def _tags_with_separator(self, part: Part) -> str:
        each = self._rule(" | ".join(self._tag(one) for one in part["tags"]))
        found = each
        if not part.get("stop_after_first"):
            separator = _text(part["separator"])
            found = f"{each} ({separator if separator != _NOTHING else ''} {each})*"
        return found if part.get("at_least_one") else f"({found})?"

    def _triggered_tags(self, part: Part) -> str:
        calls: list[str] = []
        for trigger in part["triggers"]:
            begun = [one for one in part["tags"] if one["begin"].startswith(trigger)]
            rest = [{**one, "begin": one["begin"][len(trigger) :]} for one in begun]
            if rest:
                opened = self._lazy(f"/{_ANY}/ {_text(trigger)}")
                calls.append(f"{opened} {self._rule(' | '.join(map(self._tag, rest)))}")
        return self._free(calls, part)

    def _token_triggered_tags(self, part: Part) -> str:
        calls: list[str] = []
        for trigger in part["trigger_tokens"]:
            begun = [one for one in part["tags"] if one["begin"]["token"] == trigger]
            rest = [{**one, "begin": ""} for one in begun]
            if rest:
                options = self._rule(" | ".join(map(self._tag, rest)))
                calls.append(f"/{_ANY}/ <[{trigger}]> {options}")
        return self._free(calls, part)

    def _free(self, calls: list[str], part: Part) -> str:
        """Write free text with calls in it, or calls with free text behind them. calls: each with
        the text before it."""
        call, text = self._rule(" | ".join(calls)), f"/{_ANY}/"
        if part.get("at_least_one"):  # a call comes first
            first = self._rule(" | ".join(map(self._tag, part["tags"])))
            return first if part.get("stop_after_first") else f"{first} ({call})* {text}"
        return (
            self._rule(f"{call} | {text}") if part.get("stop_after_first") else f"({call})* {text}"
        )

    # ---- what ends at the text behind it ------------------------------------------------------

    def _ended(self, part: Part, behind: str) -> str:
        """Write free text, an expression or a value, and the fixed text behind it."""
        kind = part["type"]
        if kind == "any_text":
            excluded = "|".join(map(literal_text, part.get("excludes") or ()))
            free = f"/{_ANY}/ & ~/{_ANY}(?:{excluded}){_ANY}/" if excluded else f"/{_ANY}/"
            return self._text_until(free, behind)
        if kind == "regex":
            return self._text_until(f"/{spanned(part['pattern'])}/", behind)
        if not part.get("bare"):
            return f"{self._schema(part)} {_text(behind)}" if behind else self._schema(part)
        return self._bare(part, behind)

    def _bare(self, part: Part, behind: str) -> str:
        document = SchemaDocument(read_schema(part["json_schema"]))
        options = [
            self._text_until(_all_of(text), behind)
            for text in bare_texts(document, tuple(part.get("at", ())))
        ]
        schema = without_strings(self._library_schema(part))
        if not self._check(schema):
            options.append(f"{self._sub({'json_schema': schema})} {_text(behind)}")
        return self._rule(" | ".join(options))

    def _text_until(self, expression: str, behind: str) -> str:
        if not behind:
            return self._terminal(expression)
        return self._lazy(f"({expression}) {_text(behind)}")

    def _schema(self, part: Part) -> str:
        return self._sub({"json_schema": self._library_schema(part)})

    def _library_schema(self, part: Part) -> dict[str, Any]:
        try:
            return library_schema(
                part["json_schema"],
                self._check,
                one_line=part["one_line"],
                at=tuple(part.get("at", ())),
            )
        except ValueError as error:
            tool = part.get("tool")
            raise ValueError(f"tool {tool!r}: {error}" if tool else str(error)) from None

    # ---- rules --------------------------------------------------------------------------------

    def _rule(self, body: str) -> str:
        return self._new("r", "", body)

    def _terminal(self, body: str) -> str:
        return self._new("T", "", body)

    def _lazy(self, body: str) -> str:
        return self._new("z", "[lazy]", self._terminal(body))

    def _new(self, kind: str, options: str, body: str) -> str:
        """Return the name of the rule with this body, which is written once."""
        key = f"{kind}{options}: {body}"
        if key not in self._named:
            name = self._named[key] = f"{kind}{len(self._named)}"
            self._rules.append(f"{name}{options}: {body}")
        return self._named[key]

    def _sub(self, grammar: dict[str, Any]) -> str:
        for known in self._grammars:
            if grammar.items() <= known.items():
                return f"@{known['name']}"
        name = f"g{len(self._grammars)}"
        self._grammars.append({"name": name, **grammar})
        return f"@{name}"


_ENDED = frozenset(("any_text", "regex", "json_schema"))


def _flat(parts: Sequence[Part]) -> Any:
    """Yield the parts of nested sequences and tags, so that each one's successor is known."""
    for part in parts:
        if part["type"] == "sequence":
            yield from _flat(part["elements"])
        elif part["type"] == "tag" and not isinstance(part["end"], list):
            yield from _flat([*_as_parts(part["begin"]), part["content"], *_as_parts(part["end"])])
        else:
            yield part


def _as_parts(side: Any) -> list[Part]:
    """Return a tag's beginning or end as formats."""
    if isinstance(side, dict):
        return [side]
    return [{"type": "const_string", "value": side}] if side else []


def _all_of(text: BareText) -> str:
    return " & ".join(f"/{one}/" for one in text) or f"/{_ANY}/"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
