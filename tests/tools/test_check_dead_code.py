"""The check of dead code names what only tests use, and nothing that somebody calls."""

import pytest

from tools.check_dead_code import dead

UNUSED = "LEAST = 3\n\n\ndef alone() -> int: ...\n\n\nclass Record:\n    def method(self): ...\n"


def names(modules: dict[str, str], users: dict[str, str] | None = None) -> list[str]:
    return [each.name for each in dead(modules, users or {})]


def test_what_nothing_uses_is_named_with_its_place() -> None:
    found = dead({"some.py": UNUSED}, {})
    assert {each.name for each in found} == {"LEAST", "alone", "Record", "method"}
    assert "some.py:4: alone is used by tests alone, or by nothing" in map(str, found)


@pytest.mark.parametrize(
    "user",
    [
        "print(LEAST, alone(), Record().method)",
        'getattr(module, "alone"), "LEAST Record", x.method',  # by text
    ],
)
def test_what_another_module_uses_is_alive(user: str) -> None:
    assert names({"some.py": UNUSED, "other.py": user}) == []


def test_a_page_that_people_follow_uses_what_it_names() -> None:
    assert names({"some.py": UNUSED}, {"guide.md": "`LEAST`, `alone`, `Record.method`"}) == []


def test_docstrings_comments_and_definitions_are_no_use() -> None:
    other = '"""alone"""\n\n\ndef used():\n    """Call alone."""  # alone\n\n\nused()\n'
    assert names({"some.py": "def alone(): ...\n", "other.py": other}) == ["alone"]


def test_what_a_framework_calls_is_alive() -> None:
    registered = "@app.get('/')\ndef handler(): ...\n"
    visitor = "class Visitor(ast.NodeVisitor):\n    def visit(self): ...\n\n\nVisitor()\n"
    assert names({"some.py": f"{registered}\n\n{visitor}"}) == []


def test_an_override_is_alive_where_the_method_is_called() -> None:
    base = "class A:\n    def run(self): ...\n"
    other = "class B(A):\n    def run(self): ...\n\n\nB().run()\nA\n"
    assert names({"some.py": f"{base}\n\n{other}"}) == []
