"""Structural tags, EBNF and choices: which texts the library's grammar of each takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atom.model_engine.structured_output.compile_messages import CompilerSetup
from atom.model_engine.structured_output.grammar_library import GrammarLibrary
from atom.structured_outputs import GrammarSpec, StructuredOutputsParams
from atom.structured_outputs.library_grammar import library_grammar
from tests.support.structured_output.grammar_draws import GrammarDraws

Format = dict[str, Any]


@pytest.fixture(scope="module")
def draws() -> GrammarDraws:
    return GrammarDraws()


def of_tag(written: Format) -> GrammarSpec:
    tag = {"type": "structural_tag", "format": written}
    return GrammarSpec("structural_tag", json.dumps(tag))


def const(value: str) -> Format:
    return {"type": "const_string", "value": value}


def value_of(schema: Any, **more: Any) -> Format:
    return {"type": "json_schema", "json_schema": json.dumps(schema), "one_line": False, **more}


ANY: Format = {"type": "any_text"}
WHOLE = value_of({"type": "integer"})
CALLS = [
    {"begin": "<f=a>", "content": WHOLE, "end": "</f>"},
    {"begin": "<f=b>", "content": {"type": "regex", "pattern": ".*"}, "end": "</f>"},
]

# (format, texts it takes, texts it does not)
TAGS: list[tuple[Format, list[str], list[str]]] = [
    (const('a "q"\\\n\x01é'), ['a "q"\\\n\x01é'], ["a"]),
    ({"type": "sequence", "elements": [const("a"), WHOLE, const("b")]}, ["a12b"], ["a12", "ab"]),
    ({"type": "or", "elements": [const("a"), WHOLE]}, ["a", "7"], ["a7", ""]),
    ({"type": "optional", "content": const("a")}, ["", "a"], ["aa"]),
    ({"type": "star", "content": const("a")}, ["", "aa"], ["b"]),
    ({"type": "plus", "content": const("a")}, ["a", "aa"], [""]),
    ({"type": "grammar", "grammar": 'root ::= "x" | y\ny ::= "y" y | "."'}, ["x", "yy."], ["y"]),
    ({"type": "tag", "begin": "<a>", "content": ANY, "end": "</a>"},
     ["<a></a>", "<a>x </b></a>"], ["<a>x", "<a>x</a>y</a>"]),
    ({"type": "tag", "begin": "<a>", "content": {**ANY, "excludes": ["no", "nay"]}, "end": "</a>"},
     ["<a>yes</a>"], ["<a>no</a>", "<a>nay</a>"]),
    ({"type": "tag", "begin": "<", "content": {"type": "regex", "pattern": "[a-z>]*"},
      "end": [">", "]"]}, ["<ab>", "<ab]"], ["<ab", "<ab>>"]),
    ({"type": "tags_with_separator", "tags": CALLS, "separator": ";", "at_least_one": True},
     ["<f=a>1</f>", "<f=b>x</f>;<f=a>2</f>"], ["", "<f=a>1</f><f=a>1</f>", "<f=a>1</f>;"]),
    ({"type": "tags_with_separator", "tags": CALLS, "separator": "", "stop_after_first": True},
     ["", "<f=a>1</f>"], ["<f=a>1</f><f=a>1</f>"]),
    ({"type": "triggered_tags", "triggers": ["<f="], "tags": CALLS},
     ["free <g=a>", "x <f=a>1</f> y <f=b>z</f>"], ["<f=c>", "<f=a>x</f>", "x <f="]),
    ({"type": "triggered_tags", "triggers": ["<f="], "tags": CALLS, "at_least_one": True},
     ["<f=a>1</f>", "<f=a>1</f> free"], ["free", "free <f=a>1</f>"]),
    ({"type": "triggered_tags", "triggers": ["<f="], "tags": CALLS, "stop_after_first": True},
     ["free", "x <f=a>1</f>"], ["x <f=a>1</f> y"]),
    (value_of({"type": ["string", "integer"], "maxLength": 2}, bare=True),
     ["ab", "", "123"], ["abc", '"a"x']),
    (value_of({"allOf": [{"enum": ["red", "blue", 3]}, {"pattern": "^[a-r]"}]}, bare=True),
     ["blue", "red", "3"], ["green", "4"]),
    (value_of({"$ref": "#/$defs/day", "$defs": {"day": {"format": "date", "type": "string"}}},
              bare=True), ["2024-02-29"], ["2023-02-29", '"2024-02-29"']),
]  # fmt: skip


@pytest.mark.parametrize(
    ("written", "taken", "left"), TAGS, ids=[json.dumps(one)[:60] for one, _, _ in TAGS]
)
def test_a_tags_format_takes_the_texts_that_fit(
    draws: GrammarDraws, written: Format, taken: list[str], left: list[str]
) -> None:
    grammar = draws.compile(of_tag(written))
    for text in taken:
        assert draws.accepts(grammar, text), text
    for text in left:
        assert not draws.accepts(grammar, text), text


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (
            {"type": "dispatch"},
            "format 'dispatch' is not kept by this server; write one of any_tex",
        ),
        ({"type": "token", "token": "<|x|>"}, "is kept by its id only"),
        (value_of({"type": "integer", "minimum": 2**60}, tool="f"), r"tool 'f': .* minimum at \$"),
        (value_of({"type": "string", "not": {"const": "a"}}, bare=True), r"not at \$"),
        ({"type": "grammar", "grammar": "root ::= other"}, "Rule 'other' not found"),
    ],
)
def test_a_format_that_is_not_kept_is_refused_by_name(
    draws: GrammarDraws, written: Format, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        draws.compile(of_tag(written))


GRAMMARS: list[tuple[str, list[str], list[str]]] = [
    ('root ::= "a" # a comment\n  | "b" | c # another\nc ::= "c"\n', ["a", "b", "c"], ["#", ""]),
    ('root ::= "\\u00e9\\U0001F600\\x41\\"\\\\" [\\u00e9-\\u00ff]', ['é😀A"\\ê'], ["é"]),
    ('root ::= ("\\x01" | "a\\u0002b")+', ["\x01a\x02b"], ["a"]),
    ('root ::= "(" root ")" | [^()]+ ', ["((x y))"], ["((x)", ""]),
    ('root ::= a "x"\na ::= a "y" | ""', ["x", "yyx"], ["y"]),
    ("root ::= [0-9]{2,3} [\\]\\[]?", ["12", "123]"], ["1", "1234"]),
]


LARK: list[tuple[str, list[str], list[str]]] = [
    ('start: "a" | b // "::="\nb: "b" # root ::=\n', ["a", "b"], ["", "ab"]),
    ('?start: sum\nsum: NUM ("+" NUM)*\nNUM: /[0-9]+/', ["1", "12+3"], ["+", "1+"]),
    ('start: WORD " " WORD\nWORD: /[a-z]{1,3}/i', ["ab CD"], ["abcd e", "ab"]),
    ('start: "(" start ")" | "::=" | "<@%json>"', ["(::=)", "<@%json>"], ["(", "()"]),
    ('%import common.INT\nstart: INT ["," INT]', ["1", "1,22"], ["1,", "x"]),
    ("start: item~2..3\nitem: /[xy]/", ["xy", "yyy"], ["x", "xxxx"]),
]
# (grammar, words of the error): additions of the library, and mistakes.
NO_LARK = [
    ('start: %json {"type": "integer"}', "directive %json"),
    ('start: "a"\nA: %regex {"substring_words": "a b"}', "line 2 .* directive %regex"),
    ('%llguidance {"no_forcing": false}\nstart: "a"', "directive %llguidance"),
    ("start: @other", "another grammar @other"),
    ("start: <|im_end|>", r"a token <\|im_end\|>"),
    ("start: <[5]>", r"a token <\[5\]>"),
    ("start[max_tokens=3]: /.*/", r"attribute \[max_tokens=3\]"),
    ('first: "a"', "no rule start"),
    ("start: other", 'unknown name: "other"'),
    ("start: /(?=a)b/", "invalid regex"),
    ('start: "a', "."),
]


@pytest.mark.parametrize(("text", "taken", "left"), LARK)
def test_a_grammar_may_be_larks(
    draws: GrammarDraws, text: str, taken: list[str], left: list[str]
) -> None:
    grammar = draws.compile(GrammarSpec("grammar", text))
    for one in taken:
        assert draws.accepts(grammar, one), one
    for one in left:
        assert not draws.accepts(grammar, one), one


@pytest.mark.parametrize(("text", "words"), NO_LARK)
def test_a_lark_grammar_that_is_not_kept_is_refused_by_name(
    draws: GrammarDraws, text: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        draws.compile(GrammarSpec("grammar", text))


@pytest.mark.parametrize(("text", "taken", "left"), GRAMMARS)
def test_a_grammar_is_read_in_the_notation_of_llama_cpp(
    draws: GrammarDraws, text: str, taken: list[str], left: list[str]
) -> None:
    grammar = draws.compile(GrammarSpec("grammar", text))
    for one in taken:
        assert draws.accepts(grammar, one), one
    for one in left:
        assert not draws.accepts(grammar, one), one


def test_a_choice_is_one_of_its_texts_whatever_they_hold(draws: GrammarDraws) -> None:
    choices = ["a", "ab", 'q"\\/', "\x01\x7f\x80", "é😀", "\b\f\n", "[x]*"]
    grammar = draws.compile(StructuredOutputsParams(choice=choices).spec())
    for text in choices:
        assert draws.accepts(grammar, text)
    for text in ("", "aa", "x"):
        assert not draws.accepts(grammar, text)


def test_a_text_that_must_come_may_be_any_of_its_tokens() -> None:
    tokens = [bytes([byte]) for byte in range(256)] + [b"he", b"hell", b"hello", b""]
    setup = CompilerSetup(tokenizer_folder="", vocab_size=len(tokens), end_token_ids=[259])

    def with_a_blank(text: str) -> list[int]:  # as tokenizers do that begin each text with one
        return [32, *text.encode()]

    library = GrammarLibrary(tokens, setup, with_a_blank)
    spec = StructuredOutputsParams(choice=["hello"]).spec()
    matcher = library.matcher(library_grammar(spec, library.check, library.to_rules))
    allowed = [at for at in range(260) if matcher.compute_bitmask()[at // 8] >> at % 8 & 1]
    assert [tokens[at] for at in allowed] == [b"h", b"he", b"hell", b"hello"]
