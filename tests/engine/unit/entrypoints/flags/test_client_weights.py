"""--fairness-weights: what a file may say, and what is refused without telling a key."""

from __future__ import annotations

from pathlib import Path

import pytest

from atom.client_label import client_label
from atom.entrypoints.flags.client_weights import read_client_weights
from atom.errors import ConfigError


def test_clients_are_named_by_what_they_go_by_or_by_their_label(tmp_path: Path) -> None:
    file = tmp_path / "weights.json"
    file.write_text(
        '{"header:team-a": 4, "addr:2001:db8::1": 0.5, "key:sk-1": 2, "key-0123456789ab": 3}'
    )
    assert read_client_weights(file) == {
        client_label("header", "team-a"): 4.0,
        client_label("addr", "2001:db8::/64"): 0.5,
        client_label("key", "sk-1"): 2.0,
        "key-0123456789ab": 3.0,
    }
    assert read_client_weights(None) == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "must hold one object"),
        ('{"sk-secret": 1}', "a client is named header:VALUE"),
        ('{"token:sk-secret": 1}', "a client is named header:VALUE"),
        ('{"key:": 1}', "a client is named header:VALUE"),
        ('{"key:sk-secret": 0}', "from 0.001 to 1000"),
        ('{"key:sk-secret": -1}', "from 0.001 to 1000"),
        ('{"key:sk-secret": 1e9}', "from 0.001 to 1000"),
        ('{"key:sk-secret": NaN}', "from 0.001 to 1000"),
        ('{"key:sk-secret": "4"}', "from 0.001 to 1000"),
        ('{"key:sk-secret": true}', "from 0.001 to 1000"),
        ('{"key:sk-secret": null}', "from 0.001 to 1000"),
    ],
)
def test_what_gives_no_weight_is_refused_without_telling_a_key(
    tmp_path: Path, text: str, told: str
) -> None:
    file = tmp_path / "weights.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=told) as caught:
        read_client_weights(file)
    assert str(file) in str(caught.value)
    assert "sk-secret" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--fairness-weights .*nowhere: cannot be read"):
        read_client_weights(tmp_path / "nowhere")
