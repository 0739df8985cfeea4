"""Expressions are languages of values: what is drawn from one is found by Python and ECMA-262 both,
what they find is taken, and what no grammar says is refused by name."""

from __future__ import annotations

import contextlib
import json
import re
from random import Random
from typing import Any

import pytest

from atom.structured_outputs import GrammarSpec
from tests.support.structured_output.grammar_draws import GrammarDraws, NoEndError

RING_ENTRIES = 'ab"\\\n\t1_ →😀-'  # none that the dialects class apart


@pytest.fixture(scope="module")
def draws() -> GrammarDraws:
    return GrammarDraws()


def expression(random: Random, depth: int = 0, *, anchors: bool = True) -> str:
    """One that ECMA-262 and Python read alike; anchors: it may have some."""

    def inner() -> str:
        return expression(random, depth + 1, anchors=anchors)

    kind = random.randrange(10 if depth < 3 else 4)
    if kind < 3:
        return re.escape(random.choice(RING_ENTRIES)) if random.random() < 0.7 else "[ab1]"
    if kind == 3:
        return random.choice(
            (".", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", '[^"]', r"[^\\\n]", "[a-c-]", r"\x22",
             r"é", r"[\t\n]", r"[^\w]", r"[\s\S]", "[é-ü]", "[^a1]")
        )  # fmt: skip
    if kind < 6:
        return "".join(inner() for _ in range(random.randint(1, 3)))
    if kind == 6:
        return "(" + "|".join(inner() for _ in range(2)) + ")"
    if kind == 7:
        return (random.choice(("^", "$", "")) if anchors else "") + inner()
    if kind == 8:
        return inner() + (random.choice(("$", "", "^")) if anchors else "")
    repeated = expression(random, depth + 1, anchors=False)
    return f"(?:{repeated}){random.choice(('*', '+', '?', '{2}', '{0,2}', '{1,}', '*?'))}"


def text(random: Random) -> str:
    return "".join(random.choice(RING_ENTRIES) for _ in range(random.randrange(6)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.whole) for seed in range(2, 6))]
)
def test_a_pattern_takes_the_texts_that_validators_find_it_in(
    draws: GrammarDraws, seed: int
) -> None:
    random = Random(seed)
    for _ in range(40):
        pattern = expression(random)
        grammar = compiled_of(draws, {"type": "string", "pattern": pattern})
        for _ in range(30):
            value = text(random)
            # To Python the end is also before a line feed that ends the text; it is not taken.
            found = re.search(pattern.replace("$", r"\Z"), value) is not None
            taken = grammar is not None and draws.accepts(grammar, as_json(value))
            assert taken == found, (pattern, value)


def compiled_of(draws: GrammarDraws, schema: Any) -> str | None:
    """The grammar of a schema; None if no value fits it."""
    with contextlib.suppress(ValueError):
        return draws.schema(schema)
    with pytest.raises(ValueError, match="leaves no value"):
        draws.schema(schema)
    return None


def drawn(draws: GrammarDraws, grammar: str, random: Random) -> list[str]:
    found = []
    for _ in range(3):
        try:
            found.append(draws.draw(grammar, random))
        except NoEndError:
            continue
    return found


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.whole) for seed in range(1, 5))]
)
def test_what_is_drawn_from_a_pattern_is_json_and_is_found(draws: GrammarDraws, seed: int) -> None:
    random = Random(seed)
    for _ in range(25):
        pattern = expression(random)
        grammar = compiled_of(draws, {"type": "string", "pattern": pattern})
        for answer in drawn(draws, grammar, random) if grammar else ():
            assert re.search(pattern, json.loads(answer)), (pattern, answer)


@pytest.mark.parametrize("seed", range(2))
def test_what_is_drawn_from_a_regex_is_spanned_by_it(draws: GrammarDraws, seed: int) -> None:
    random = Random(seed)
    for _ in range(25):
        pattern = expression(random)
        if compiled_of(draws, {"type": "string", "pattern": f"^(?:{pattern})$"}) is None:
            continue
        for answer in drawn(draws, draws.compile(GrammarSpec("regex", pattern)), random):
            assert re.fullmatch(pattern, answer), (pattern, answer)


VALUES: list[tuple[str, list[str], list[str]]] = [
    (r"^a\nb$", ["a\nb"], ["anb", "a\\nb"]),
    (r"^\t\x22\\$", ['\t"\\'], ["t"]),
    (r'^["\\]{2}$', ['""', '\\"'], ['"']),
    (r"^[\r\n]$", ["\r", "\n"], ["r"]),
    (r"^[\0\cA]\x1f$", ["\x01\x1f"], ["\0\x1f", "0"]),
    (r'^[^"]$', ["a", "\\", "\n", "\x01"], ['"', ""]),
    (r"^[\x00-\x1f!]$", ["\x1f", "\n", "!"], ['"', "\\"]),
    (r"\\", ["a\\b"], ["ab"]),
    ("b", ["abc", "b"], ["ac", ""]),
    ("^a|b$", ["ax", "xb"], ["xa", "bx"]),
    ("(^|,)a(,|$)", ["a", "x,a,y", "b,a"], ["ba", "xa,"]),
    ("^$", [""], ["a"]),
    ("", ["", "x"], []),
    (r"^\u{1F600}\ud83d\ude00$", ["😀😀"], ["😀"]),
    ("^[😀-😂]$", ["😁"], ["a"]),
    ("^.$", ["é", "😀", '"'], ["\n", "\r", "\u2028", "ab"]),
    (r"^\d$", ["1"], ["a", "१"]),
    (r"^\D$", ["a"], ["1", "१"]),
    (r"^[^\s]$", ["a"], [" ", "\u2003", "\ufeff", "\x1c"]),
    (r"^[\w-.]$", ["a", "-", "."], ["+"]),
    (r"^a{2,}$", ["aa", "aaa"], ["a"]),
    (r"^a{,2}x?$".replace("{,2}", "{0,2}"), ["", "aax"], ["aaa"]),
    (r"^a{$", ["a{"], ["a"]),
    (r"^(?<n>a)(?P<m>b)$", ["ab"], ["a"]),
    (r"^a*?b+?$", ["aab"], ["a"]),
    (r"a*^b", ["b"], ["ab"]),
]


@pytest.mark.parametrize(("pattern", "taken", "left"), VALUES, ids=[one for one, *_ in VALUES])
def test_a_pattern_speaks_of_values(
    draws: GrammarDraws, pattern: str, taken: list[str], left: list[str]
) -> None:
    for schema, wrap in (
        ({"type": "string", "pattern": pattern}, lambda value: value),
        ({"type": "object", "patternProperties": {pattern: {"type": "null"}}},
         lambda value: {value: None}),
        ({"type": "object", "propertyNames": {"pattern": pattern}}, lambda value: {value: None}),
    ):  # fmt: skip
        compiled = draws.schema(schema)
        for value in taken:
            assert draws.accepts(compiled, as_json(wrap(value))), (schema, value)
        for value in left:
            assert not draws.accepts(compiled, as_json(wrap(value))), (schema, value)


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


REFUSED = [
    ("(?=a)b", "a lookahead is not kept"),
    ("^(?=.*[A-Z])(?=.*[0-9]).{8,}$", "a lookahead is not kept"),
    ("a(?!b)", "a negative lookahead"),
    ("(?<=a)b", "a lookbehind"),
    ("(?<!a)b", "a negative lookbehind"),
    (r"(a)\1", "a back-reference or octal escape"),
    (r"(?<n>a)\k<n>", r"a back-reference \(\\k\)"),
    ("(?P<n>a)(?P=n)", "a back-reference"),
    (r"\bx", r"a word boundary \(\\b\)"),
    (r"\p{L}", r"a Unicode property \(\\p\)"),
    ("(?i)a", "an inline flag"),
    ("(?i:a)", "an inline flag"),
    ("(?>a)", "an atomic group"),
    ("(?#c)a", "a comment"),
    ("a++", "a possessive quantifier"),
    ("a**", "a quantifier stands behind another"),
    ("*a", "nothing to repeat"),
    ("^*", "an anchor cannot be repeated"),
    ("(^a)+", "an anchor .* within a repetition"),
    ("a{,3}", r"write \{0,n\}"),
    ("a{3,2}", "upper bound is below"),
    ("a{99999}", "more than 65535"),
    ("[]a]", "a class is empty, or begins with ]"),
    ("[b-a]", "a range's end is before its start"),
    ("[[:alpha:]]", "a POSIX class"),
    ("[a", "a class is not closed"),
    ("(a", "a parenthesis is not closed"),
    ("a)", "a closing parenthesis has no opening one"),
    (r"\Aa\Z", r"\\A \(write \^\)"),
    (r"\e", r"the escape \\e"),
    (r"\xg", "two hexadecimal digits"),
    (r"\ud800", "half of a surrogate pair"),
    ("a\\", "a backslash stands at the end"),
    ("(" * 65 + ")" * 65, "nested deeper than 64"),
    ("a" * 5000, "at most 4096"),
]


@pytest.mark.parametrize(("pattern", "words"), REFUSED, ids=[one[:30] for one, _ in REFUSED])
def test_what_is_not_kept_is_refused_by_name(draws: GrammarDraws, pattern: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        draws.compile(GrammarSpec("regex", pattern))
    with pytest.raises(ValueError, match=r"pattern at \$ is not kept: .*" + words):
        draws.schema({"pattern": pattern})


def test_a_pattern_beside_bounds_on_length_is_their_intersection(draws: GrammarDraws) -> None:
    random = Random(5)
    for _ in range(40):
        pattern, low = expression(random), random.randrange(3)
        high = low + random.randrange(4)
        schema = {"type": "string", "pattern": pattern, "minLength": low, "maxLength": high}
        grammar = compiled_of(draws, schema)
        for _ in range(20):
            value = text(random)
            found = re.search(pattern.replace("$", r"\Z"), value) is not None
            taken = grammar is not None and draws.accepts(grammar, as_json(value))
            assert taken == (found and low <= len(value) <= high), (pattern, value)


@pytest.mark.parametrize(
    "pattern", [r"^\S{1,40}$", "^.{3,60}$", "^[\u0700-\u3000]{3,40}$", "^[\uc000-😀]{4,50}$"]
)
def test_what_is_drawn_from_counted_classes_is_utf_8(draws: GrammarDraws, pattern: str) -> None:
    grammar = draws.schema({"type": "string", "pattern": pattern})
    for seed in range(40):
        assert re.search(pattern, json.loads(draws.draw(grammar, Random(seed))))
