"""A template that would run or grow without end is given up, and says why; others are untouched."""

# ruff: noqa: E501 (a template a line)

from __future__ import annotations

import itertools
import json
import tracemalloc

import jinja2
import pytest

from atom.bounded_input.template_work import MOST_CHARACTERS
from atom.chat_template import ChatTemplate
from atom.errors import RequestError
from atom.template_sandbox import (
    TemplateBoundsError,
    render_within_bounds,
    template_environment,
)

BIG = MOST_CHARACTERS + 1
ENDLESS = {
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops over text": "{% for a in x %}{% for b in x %}{% for c in x %}{% endfor %}{% endfor %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "a macro of itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loops": "{% for i in range(9) recursive %}{{ loop(range(9)) }}{% endfor %}",
    "words": "{{ lipsum(n=1000000000) }}",
    "times": f"{{{{ 'a' * {BIG} }}}}",
    "times, turned": f"{{{{ {BIG} * 'a' }}}}",
    "a list times": f"{{{{ ([1] * {BIG}) | length }}}}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "center": "{{ 'a' | center(1000000000) }}",
    "center, method": "{{ 'a'.center(1000000000) }}",
    "ljust": "{{ 'a'.ljust(1000000000) }}",
    "zfill": "{{ '1'.zfill(1000000000) }}",
    "tabs": "{{ '\t'.expandtabs(1000000000) }}",
    "indent": "{{ 'a\nb' | indent(1000000000) }}",
    "percent": "{{ '%1000000000d' % 5 }}",
    "percent star": "{{ '%*d' % (1000000000, 5) }}",
    "format": "{{ '{:>1000000000}'.format(5) }}",
    "format by value": "{{ '{:>{}}'.format(5, 1000000000) }}",
    "format filter": "{{ '%1000000000d' | format(5) }}",
    "doubling by ~": "{% set n = namespace(t='a') %}{% for i in range(60) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
    "doubling by +": "{% set n = namespace(t='a') %}{% for i in range(60) %}{% set n.t = n.t + n.t %}{% endfor %}",
    "doubling by blocks": (
        "{% set n = namespace(t='a') %}{% for i in range(60) %}"
        "{% set n.t %}{{ n.t }}{{ n.t }}{% endset %}{% endfor %}"
    ),
    "doubling lists": "{% set n = namespace(t=[1]) %}{% for i in range(60) %}{% set n.t = n.t + n.t %}{% endfor %}",
    "doubling by join": "{% set n = namespace(t='aa') %}{% for i in range(60) %}{% set n.t = [n.t, n.t] | join %}{% endfor %}",
    "replacement": (
        "{% set t = 'a' * 1000000 %}{{ t.replace('a', t) }}"
    ),
    "replacement filter": "{% set t = 'a' * 1000000 %}{{ t | replace('a', t) }}",
    "squares": "{% set n = namespace(s=3) %}{% for i in range(40) %}{% set n.s = n.s * n.s %}{% endfor %}{{ n.s > 1 }}",
    "powers of powers": "{% set n = namespace(s=3) %}{% for i in range(40) %}{% set n.s = n.s ** 9 %}{% endfor %}",
    "rounding": "{{ 5 | round(-1000000000) }}",
    "rounding up": "{{ 5 | round(1000000000, 'ceil') }}",
    "a title": "{{ ('a ' * 1000000) | title }}",
    "wrapping": "{{ ('a ' * 1000000) | wordwrap(5) }}",
    "wrapping by much": "{{ ('a ' * 10000) | wordwrap(1, wrapstring='b' * 1000000) }}",
    "tags": "{{ ('<' * 1000000) | striptags }}",
    "links": "{{ ('www.' * 1000000) | urlize }}",
    "tabs of a width": "{{ ('\t' * 100000).expandtabs(100000) }}",
    "indents": "{{ ('a\n' * 1000000) | indent(100000) }}",
    "translation": "{{ ('a' * 1000000).translate({97: 'b' * 1000000}) }}",
    "a separator": "{{ ('a' * 1000000).join(range(100000) | map('string') | list) }}",
    "a separator's filter": "{{ range(100000) | join('a' * 1000000) }}",
    "fields": "{{ '{:99999}' * 1000 }}{{ ('{:99999}' * 1000).format(*range(1000)) }}",
    "a format method apart": "{% set f = '{:1000000000}'.format %}{{ f(5) }}",
    "a format method by attr": "{{ ('{:1000000000}' | attr('format'))(5) }}",
    "texts in fields": "{{ ('{0}' * 100000).format('a' * 1000000) }}",
    "bytes": "{{ (5).to_bytes(1000000000, 'big') }}",
    "encoded": "{{ ('a' * 1000000).encode() * 1000000 }}",
    "pieces": "{{ ('a ' * 2000000).split() | length }}",
    "lines": "{{ ('\n' * 2000000).splitlines() | length }}",
    "a list's letters": "{{ (['a'] * 100000) | replace('a', 'b' * 1000000) }}",
    "a number's digits": "{{ (10 ** 1000) | replace(0, 'b' * 1000000) }}",
    "letters by name": "{{ ('a' * 100000) | replace(new='b' * 1000000, old='a') }}",
    "a list of fields": "{{ (['%99999s'] * 1000) | format }}",
    "letters": "{{ ('a' * 2000000) | list | length }}",
    "lists of itself": "{% set n = namespace(t=[1]) %}{% for i in range(60) %}{% set n.t = [n.t, n.t] %}{% endfor %}{{ n.t }}",
    "tuples of itself": "{% set n = namespace(t=(1, 2)) %}{% for i in range(60) %}{% set n.t = (n.t, n.t) %}{% endfor %}{{ n.t | string }}",
    "dicts of itself": "{% set n = namespace(t={}) %}{% for i in range(60) %}{% set n.t = {'a': n.t, 'b': n.t} %}{% endfor %}{{ n.t | tojson }}",
    "equal nests": (
        "{% set n = namespace(t=[1], u=[1]) %}{% for i in range(60) %}"
        "{% set n.t = [n.t, n.t] %}{% set n.u = [n.u, n.u] %}{% endfor %}{{ n.t == n.u }}"
    ),
    "a deep nest": "{% set n = namespace(t=[1]) %}{% for i in range(100000) %}{% set n.t = [n.t] %}{% endfor %}{{ n.t }}",
    "much work in few steps": "{% set t = 'ab' * 1000000 %}{% for i in range(100000) %}{% set u = t.replace('a', 'c') %}{% endfor %}",
    "long output": "{% set t = 'a' * 1000000 %}{% for i in range(99999) %}{{ t }}{% endfor %}",
}  # fmt: skip


def render(source: str) -> str:
    return render_within_bounds(template_environment().from_string(source), {"x": "a" * 500})


@pytest.mark.parametrize("name", ENDLESS)
def test_what_has_no_end_is_given_up(name: str) -> None:
    with pytest.raises((jinja2.TemplateError, RecursionError)):
        render(ENDLESS[name])


BIG_VALUES = ("('\\n<a ' * 60000)", "(-(3 ** 2000))", "(['ab' * 100] * 1000)")
ARGUMENTS = ("", "-1000000000", "'a', 'b' * 1000000", "1, 'b' * 1000000")


@pytest.mark.parametrize("name", sorted(template_environment().filters))
def test_every_filter_comes_to_an_end(name: str) -> None:
    """By a result or an error: else this test does not end."""
    for value, arguments in itertools.product(BIG_VALUES, ARGUMENTS):
        source = f"{{% set r = {value} | {name}({arguments}) %}}{{{{ r is string }}}}"
        _end(source)


@pytest.mark.parametrize("name", [name for name in dir(str) if not name.startswith("_")])
def test_every_method_of_a_text_comes_to_an_end(name: str) -> None:
    for value, arguments in itertools.product(BIG_VALUES[:1], ARGUMENTS):
        _end(f"{{% set r = {value}.{name}({arguments}) %}}{{{{ r is string }}}}")


@pytest.mark.parametrize("operator", ["+", "*", "**", "%", "//", "/", "-", "~", "==", "<", "in"])
def test_every_operator_comes_to_an_end(operator: str) -> None:
    for left, right in itertools.product(BIG_VALUES, (*BIG_VALUES, "1000000000", "5")):
        _end(f"{{% set r = {left} {operator} {right} %}}{{{{ r is string }}}}")


_ENDS = (
    jinja2.TemplateError, TypeError, ValueError, AttributeError, KeyError, IndexError,
    ArithmeticError, RecursionError,
)  # fmt: skip


def _end(source: str) -> None:
    try:
        text = render(source)
    except _ENDS:
        return
    assert text in ("True", "False")


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("indent='b' * 1000000", "it indents or separates JSON by more than 1,000 characters"),
        ("indent=1000000000", "it indents or separates JSON by more than 1,000 characters"),
        ("separators=('b' * 1000000, ':')", "it indents or separates JSON by more than"),
        ("separators=(',', 'b' * 1000000), indent=2", "it indents or separates JSON by more than"),
        ("indent='b' * 1000", "it makes more than"),
        ("separators=('b' * 1000, ':'), indent=1000", "it makes more than"),
    ],
)
def test_json_that_is_all_indents_and_separators_is_given_up_before_it_is_made(
    argument: str, reason: str
) -> None:
    """Of 100,000 items, or 1,000 nested lists, it would be gigabytes."""
    for value in ("([[1] * 100] * 1000)", "n.t"):
        nest = "{% set n = namespace(t=1) %}{% for i in range(300) %}{% set n.t = [n.t, 1] %}{% endfor %}"
        source = f"{nest}{{{{ {value} | tojson({argument}) }}}}"
        tracemalloc.start()
        try:
            with pytest.raises(TemplateBoundsError, match=reason):
                render(source)
            assert tracemalloc.get_traced_memory()[1] < 200 * 2**20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("indent", ["2", "'  '", "0", "true", "none"])
@pytest.mark.parametrize("separators", ["none", "(',', ':')", "('; ', ' = ')"])
@pytest.mark.parametrize("escapes", ["true", "false"])
def test_json_is_pythons(indent: str, separators: str, escapes: str) -> None:
    value = "{'b': [1, 2.5, none, true, 'é'], 'a': {}, 'c': []}"
    source = f"{{{{ {value} | tojson({escapes}, {indent}, {separators}, true) }}}}"
    python = {"none": None, "true": True, "false": False}
    expected = json.dumps(
        {"b": [1, 2.5, None, True, "é"], "a": {}, "c": []},
        ensure_ascii=bool(python[escapes]),
        indent=eval(indent, python),
        separators=eval(separators, python),
        sort_keys=True,
    )
    assert render(source) == expected


def test_a_render_has_a_deadline() -> None:
    clock = itertools.count(0.0, 1.0)
    template = template_environment().from_string("{% for i in range(99999) %}{% endfor %}")
    with pytest.raises(TemplateBoundsError, match="takes more than 10 seconds"):
        render_within_bounds(template, {}, lambda: next(clock))


def test_a_conversation_that_cannot_be_rendered_is_its_senders_error() -> None:
    source = (
        "{{ messages[0].content }}{% if messages[0].content == 'go' %}" + ENDLESS["nested loops"]
    )
    template = ChatTemplate(source + "{% endif %}", {})
    assert template.render([{"role": "user", "content": "hi"}]) == "hi"
    with pytest.raises(RequestError, match="it takes more than"):
        template.render([{"role": "user", "content": "go"}])


HARMLESS = {
    "{% for i in [1, 2, 3] %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}": "1/3,2/3,3/3",
    "{% for k, v in {'a': 1}.items() %}{{ k ~ v }}{% endfor %}": "a1",
    "{% for k, v in {'a': 1} | items %}{{ k }}{% endfor %}": "a",
    "{% for c in 'ab' %}{{ c }}{% endfor %}": "ab",
    "{% for i in nothing %}x{% else %}none{% endfor %}": "none",
    "{% for i in [[1], [2, [3]]] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}": "123",
    "{{ 1 ~ 'a' ~ none ~ [1] ~ undefined_name }}": "1aNone[1]",
    "{% set t | upper %}a{{ 'b' }}{% endset %}{{ t }}": "AB",
    "{% set t %}a{% endset %}{{ t * 3 + 'b' }}": "aaab",
    "{% macro f(a, b='x') %}{{ a }}{{ b }}{{ caller() if caller }}{% endmacro %}{{ f(1) }}{% call f(2) %}c{% endcall %}": "1x2xc",
    "{{ 'a-b'.replace('-', '+') }}{{ 'a' | replace('a', 'c') }}{{ '%s' % 5 }}{{ '{}'.format(6) }}": "a+bc56",
    "{{ 5 % 3 }}{{ 2 ** 10 }}{{ 'x'.center(3) }}{{ 'y' | center(3) }}": "21024 x  y ",
    "{{ range(100000) | length }}{{ (range(5) | list)[1:3] }}": "100000[1, 2]",
}  # fmt: skip


@pytest.mark.parametrize("source", HARMLESS)
def test_others_are_rendered_as_jinja_does(source: str) -> None:
    assert render(source) == HARMLESS[source]
    plain = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
    assert plain.from_string(source).render(x="") == HARMLESS[source]
