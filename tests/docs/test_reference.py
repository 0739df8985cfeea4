"""The reference pages say what the engine's tables say."""

from __future__ import annotations

from tools.generate_reference import FIELDS_PAGE, FLAGS_PAGE, fields_page, flags_page


def test_the_reference_of_fields_is_the_table() -> None:
    assert FIELDS_PAGE.read_text(encoding="utf-8") == fields_page(), "run make generate"


def test_the_reference_of_flags_is_the_table() -> None:
    assert FLAGS_PAGE.read_text(encoding="utf-8") == flags_page(), "run make generate"
