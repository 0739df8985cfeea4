"""The limit of images of a prompt, as numbers and as other servers' JSON."""

from __future__ import annotations

import argparse

import pytest

from atom.sizing.options.flag_values import image_limit


@pytest.mark.parametrize(
    ("text", "limit"),
    [("8", 8), ("0", 0), ('{"image": 3}', 3), ('{"image": 0, "video": 0}', 0)],
)
def test_a_limit_is_a_number_or_json(text: str, limit: int) -> None:
    assert image_limit(text) == limit


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("many", "is not JSON"),
        ("[3]", "must be a JSON object"),
        ("{}", "no number of images"),
        ('{"image": true}', "no number of images"),
        ('{"image": "3"}', "no number of images"),
        ('{"image": 3, "video": 1}', "images alone are read"),
        ('{"image": 3, "audio": 2}', "images alone are read"),
        ('{"image": 3, "pictures": 2}', "images alone are read"),
    ],
)
def test_other_values_are_refused_with_the_form(text: str, words: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=words):
        image_limit(text)
