"""A template that would run or grow without end is given up, and says why; others are untouched."""

# ruff: noqa: E501 (a template a line)

from __future__ import annotations

import itertools

import jinja2
import pytest

from atom.chat_template import ChatTemplate
from atom.errors import RequestError
from atom.template_sandbox import (
    MOST_CHARACTERS,
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
    "long output": "{% set t = 'a' * 1000000 %}{% for i in range(99999) %}{{ t }}{% endfor %}",
}  # fmt: skip


def render(source: str) -> str:
    return render_within_bounds(template_environment().from_string(source), {"x": "a" * 500})


@pytest.mark.parametrize("name", ENDLESS)
def test_what_has_no_end_is_given_up(name: str) -> None:
    with pytest.raises((jinja2.TemplateError, RecursionError)):
        render(ENDLESS[name])


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
