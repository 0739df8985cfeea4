"""SchemaGrammar: the grammar of the JSON texts whose values fit a schema.

A rule for each conjunction that an answer may reach; cases without a value are left out. Members
come in the schema's order. Pure; the last step of `schema_to_grammar`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from atom.structured_outputs import exact_json
from atom.structured_outputs.grammar_writer import GrammarWriter, counted, one_of, quoted
from atom.structured_outputs.json_schema.cases import Case, Conjunction
from atom.structured_outputs.json_schema.inhabitation import Inhabitation, literals
from atom.structured_outputs.json_schema.items import ItemPlan
from atom.structured_outputs.json_schema.keywords import UnkeptError
from atom.structured_outputs.json_schema.members import Extras
from atom.structured_outputs.json_schema.numbers import number_languages, whole_bounds
from atom.structured_outputs.json_schema.rows import Part, Row, write_row
from atom.structured_outputs.json_schema.sets import write_set
from atom.structured_outputs.json_schema.spacing import Spacing
from atom.structured_outputs.json_schema.texts import TextLanguage, text_language
from atom.structured_outputs.regex.character_set import EVERY
from atom.structured_outputs.regex.grammar import (
    Encoding,
    automaton_expression,
    characters,
    counted_characters,
    expression,
)

_MOST_DIFFERENT = 100  # items of a set that are a range of whole numbers
_HEX = "[0-9A-Fa-f]"
# One character of a text, whatever JSON escape it comes as; no half of a surrogate pair.
_PLAIN = r"[\u0020\u0021\u0023-\u005b\u005d-\ud7ff\ue000-\U0010ffff]"
_UNIT = f'"u" ([0-9A-CEFa-cef] {_HEX}{{3}} | [Dd] [0-7] {_HEX}{{2}})'
_PAIR = f'"u" [Dd] [89ABab] {_HEX}{{2}} "\\\\u" [Dd] [C-Fc-f] {_HEX}{{2}}'
_ESCAPE = rf"[\u0022\u005c\u002fbfnrt] | {_UNIT} | {_PAIR}"
_BEHIND_TEXT = r"(=[ \n\r\t]{0,10} [,}\]:])"  # only quickens the masks


class SchemaGrammar:
    def __init__(self, inhabitation: Inhabitation, spacing: Spacing, writer: GrammarWriter) -> None:
        self._inhabitation = inhabitation
        self._spacing = spacing
        self._writer = writer
        self._rules: dict[Conjunction, str] = {}
        self._free = ""

    def value(self, conjunction: Conjunction) -> str:
        """Return the rule of a conjunction that has a value. Raises `SchemaError`."""
        name = self._rules.get(conjunction)
        if name is None:
            name = self._rules[conjunction] = self._writer.reserve("v")
            options: list[str] = []
            with self._inhabitation.expansion.placing(conjunction):
                for case in self._inhabitation.live_cases(conjunction):
                    options.extend(self._options(conjunction, case))
            self._writer.write(name, " | ".join(dict.fromkeys(options)))
        return name

    def bare_value(self, conjunction: Conjunction) -> str:
        """Return the rule of the same values, with strings without quotes and escapes. Raises
        `SchemaError`."""
        options: list[str] = []
        with self._inhabitation.expansion.placing(conjunction):
            for case in self._inhabitation.live_cases(conjunction):
                if case.values is not None:
                    values = self._inhabitation.values(case)
                    options.extend(quoted(_bare(value)) for value in values)
                    continue
                live = self._inhabitation.live_types(conjunction, case)
                if "string" in live:
                    options.append(self._bare_text(case))
                others = replace(case, types=case.types - {"string"})
                if live - {"string"}:
                    options.extend(self._options(conjunction, others))
        name = self._writer.reserve("b")
        self._writer.write(name, " | ".join(dict.fromkeys(options)))
        return name

    def _bare_text(self, case: Case) -> str:
        language = text_language(case)
        if language.node is not None or language.automaton is not None:
            return self._language(language, Encoding.TEXT, "")
        low, high = language.low, language.high
        if high is not None:
            return counted_characters(EVERY, low, high, Encoding.TEXT)
        least = f"{counted_characters(EVERY, low, low, Encoding.TEXT)} " if low else ""
        return f"{least}{characters(EVERY, Encoding.TEXT)}*"

    def _options(self, conjunction: Conjunction, case: Case) -> Iterator[str]:
        if case.values is not None:
            yield from (
                quoted(exact_json.write(value)) for value in self._inhabitation.values(case)
            )
            return
        live = self._inhabitation.live_types(conjunction, case)
        self._check_excluded(case, live)
        for kind in ("null", "boolean"):
            if kind in live:
                yield from map(quoted, literals(case, kind))
        if live & {"integer", "fraction"}:
            for language in number_languages(case):
                yield self._language(language, Encoding.TEXT, "")
        if "string" in live:
            yield self._text(case)
        if "array" in live:
            yield self._array(case, self._inhabitation.live_items(conjunction, case))
        if "object" in live:
            yield self._object(case)

    def _check_excluded(self, case: Case, live: frozenset[str]) -> None:
        for value in case.excluded:
            if exact_json.kind(value) in live & {"array", "object"}:
                raise UnkeptError(
                    "not, if or oneOf",
                    f"excludes a whole {exact_json.kind(value)}, which is not kept by this server; "
                    f"exclude by a member of it",
                )

    def _language(self, language: TextLanguage, encoding: Encoding, closing: str) -> str:
        if language.automaton is not None:
            return automaton_expression(language.automaton, encoding, self._writer, closing)
        assert language.node is not None
        body = expression(language.node, encoding)
        return f"{body} {quoted(closing)}" if closing else body

    def _text(self, case: Case) -> str:
        language = text_language(case)
        if language.node is None and language.automaton is None:
            return self._plain_text(language.low, language.high)
        return f'"\\"" {self._language(language, Encoding.JSON, chr(34))}'

    def _plain_text(self, low: int, high: int | None) -> str:
        if high is not None:
            return f'"\\"" {counted_characters(EVERY, low, high, Encoding.JSON)} "\\""'
        least = f"{counted_characters(EVERY, low, low, Encoding.JSON)} " if low else ""
        return f'"\\"" {least}{self._free_characters()}'

    def _free_characters(self) -> str:
        """Write the rest of a text after its opening quotation mark."""
        name = self._free
        if not name:
            name = self._free = self._writer.reserve("t")
            body = f'"\\"" | {_PLAIN} {name} | "\\\\" ({_ESCAPE}) {name}'
            self._writer.write(name, f"({body}) {_BEHIND_TEXT}")
        return name

    def _array(self, case: Case, plan: ItemPlan) -> str:
        within = self._spacing.within
        if case.items.unique and (plan.high is None or plan.high > 1):
            body = self._set(plan)
        elif case.items.contains:
            body = self._containing(case, plan)
        else:
            parts = [Part(self.value(one), required=True) for one in plan.prefix]
            more = self.value(plan.rest) if plan.rest in self._inhabitation.inhabited else None
            high = plan.high
            if more is None:
                high = len(parts)
            body = write_row(Row(parts, more, plan.low, high), self._spacing.comma, self._writer)
        return f'"[" {within} {body} {within} "]"'

    def _set(self, plan: ItemPlan) -> str:
        """Write an array of distinct items, if there are few of them."""
        found: list[str] = []
        for case in self._inhabitation.live_cases(plan.rest):
            if case.values is None:
                case = _with_values(case)
            found.extend(self._options(plan.rest, case))
        unique = list(dict.fromkeys(found))
        if plan.prefix:
            raise UnkeptError(
                "uniqueItems", "is not kept by this server beside prefixItems; leave it out"
            )
        if plan.low > len(unique):
            raise UnkeptError(
                "minItems", f"asks for {plan.low} different items, of which there are {len(unique)}"
            )
        return write_set(unique, (plan.low, plan.high), self._spacing.comma, self._writer)

    def _containing(self, case: Case, plan: ItemPlan) -> str:
        """Write items of which at least one fits `contains`; if the number of items is bounded,
        that item comes first."""
        if any(layer.prefix for layer in case.items.layers) or len(case.items.contains) > 1:
            raise UnkeptError(
                "contains",
                "is not kept by this server beside prefixItems or another contains; leave it out",
            )
        item = self.value(plan.rest)
        wanted = self.value((*plan.rest, *case.items.contains[0]))
        comma = self._spacing.comma
        before = f"({item} {comma})*" if plan.high is None else '""'
        least = max(plan.low - 1, 0)
        most = None if plan.high is None else plan.high - 1
        after = '""' if most == 0 else counted(f"({comma} {item})", least, most)
        return f"{before} {wanted} {after}"

    def _object(self, case: Case) -> str:
        plan, within = self._inhabitation.members(case), self._spacing.within
        live = self._inhabitation.inhabited
        parts = [
            Part(self._member(quoted(exact_json.write(member.name)), member.value), member.required)
            for member in plan.named
            if member.value in live
        ]
        more = [
            self._extras(extras)
            for extras in plan.extras
            if extras.value in live and not text_language(extras.keys).is_empty
        ]
        high = case.members.high
        if case.members.low > len(parts) + 1 and more:
            raise UnkeptError(
                "minProperties",
                f"{case.members.low} is more than the members it names, and keys of an answer "
                f"might be the same; name them in properties",
            )
        row = Row(parts, one_of(more) if more else None, case.members.low, high, once=True)
        body = write_row(row, self._spacing.comma, self._writer)
        return f'"{{" {within} {body} {within} "}}"'

    def _extras(self, extras: Extras) -> str:
        return self._member(self._text(extras.keys), extras.value)

    def _member(self, key: str, value: Conjunction) -> str:
        return f"{key} {self._spacing.colon} {self.value(value)}"


def _with_values(case: Case) -> Case:
    """Return a case that lists its values, which must be few: null, true, false and a short range
    of whole numbers. Raises `SchemaError`."""
    low, high = whole_bounds(case.numbers) if "integer" in case.types else (0, -1)
    short = low is not None and high is not None and high - low < _MOST_DIFFERENT
    if not (short and case.types <= {"null", "boolean", "integer"}):
        raise UnkeptError(
            "uniqueItems",
            "is kept by this server for items of an enum, or of a short range of integers, only; "
            "leave it out, and check the answer for it yourself",
        )
    assert low is not None
    assert high is not None
    return replace(case, values=(None, False, True, *range(low, high + 1)))


def _bare(value: object) -> str:
    return value if isinstance(value, str) else exact_json.write(value)
