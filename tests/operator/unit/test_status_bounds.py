"""A status fits the API server, whatever engines and other controllers say."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as some

from atom_operator.status.bounds import MOST_BYTES, bounded

_TEXTS = some.builds(
    lambda text, times: text * times, some.text(max_size=8), some.integers(0, 9000)
)


@given(
    some.lists(
        some.builds(
            lambda name, words, pods: {
                "name": name,
                "loadedPods": 0,
                "pods": [{"name": name, "state": "Refused", "message": words}] * pods,
            },
            _TEXTS,
            _TEXTS,
            some.integers(0, 16),
        ),
        max_size=30,
    ),
    some.integers(1, 20),
)
def test_a_status_is_bounded_and_tells_what_it_left_out(adapters: list[dict], times: int) -> None:  # type: ignore[type-arg]
    asked = adapters * times
    status = {"observedGeneration": 1, "conditions": [], "adapters": asked}
    found = bounded(status)
    assert len(json.dumps(found, ensure_ascii=False).encode()) <= MOST_BYTES * 1.1
    assert len(found["adapters"]) + found.get("adaptersOmitted", 0) == len(asked)
    assert bounded(found) == found


def test_a_long_text_keeps_its_head_and_tells_its_length() -> None:
    words = bounded({"url": "x" * 200_000})["url"]
    assert words.startswith("xxx")
    assert words.endswith("… (200000 characters)")
    assert len(words) == 1024
