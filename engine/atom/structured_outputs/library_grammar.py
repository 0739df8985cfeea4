"""Write the grammar of an answer in the form that the grammar library (llguidance) follows.

A list of grammars as JSON, the first of which is the whole answer: rules in its variant of Lark, or
JSON schemas. Everything that a client sent is rewritten or refused here. Pure, apart from `check`
and `to_rules`, which are the library's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from atom.structured_outputs.ebnf import tidied
from atom.structured_outputs.json_schema import library_schema
from atom.structured_outputs.lark import checked_lark, is_lark
from atom.structured_outputs.params import GrammarSpec
from atom.structured_outputs.regex import one_of_texts, spanned
from atom.structured_outputs.tag_grammar import TagGrammar, ToRules

# A text that must come may be written in any tokens, not in those that the tokenizer gives only.
_OPTIONS = '%llguidance {"no_forcing": true}'


def library_grammar(spec: GrammarSpec, check: Callable[[str], str], to_rules: ToRules) -> str:
    """Return the library's grammar. check: returns the library's reason against a grammar, or
    nothing; to_rules: turns an EBNF grammar into the library's rules.

    Raises ValueError with the reason why the answer cannot be kept to it.
    """

    def check_schema(schema: dict[str, Any]) -> str:
        return check(_of_schema(schema))

    if spec.kind == "json":
        return _of_schema(library_schema(spec.text, check_schema, one_line=spec.compact))
    if spec.kind == "structural_tag":
        tag = TagGrammar(check_schema, to_rules)
        grammars = tag.grammar(json.loads(spec.text)["format"])
    elif spec.kind == "regex":
        grammars = [{"lark_grammar": f"start: T\nT: /{spanned(spec.text)}/"}]
    elif spec.kind == "choice":
        grammars = [{"lark_grammar": f"start: T\nT: /{one_of_texts(json.loads(spec.text))}/"}]
    elif is_lark(spec.text):
        grammars = [{"lark_grammar": checked_lark(spec.text)}]
    else:
        grammars = [{"lark_grammar": to_rules(tidied(spec.text))}]
    text = _text(grammars)
    if reason := check(text):
        raise ValueError(_of_client(reason))
    return text


def _of_schema(schema: dict[str, Any]) -> str:
    return _text([{"lark_grammar": "start: @g"}, {"name": "g", "json_schema": schema}])


def _text(grammars: list[dict[str, Any]]) -> str:
    first = {**grammars[0], "lark_grammar": f"{_OPTIONS}\n{grammars[0]['lark_grammar']}"}
    return json.dumps({"grammars": [first, *grammars[1:]]}, ensure_ascii=False)


def _of_client(reason: str) -> str:
    """Return the library's reason in a client's words."""
    if any(words in reason for words in ("panic", "too many", "too large", "too big", "fuel")):
        return "its grammar grows too large; make it smaller: fewer alternatives and repetitions"
    return reason
