"""Where the tool keeps its things, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from devcluster.errors import DevclusterError
from devcluster.settings import REPOSITORY, read_settings


def test_defaults_lie_outside_the_checkout() -> None:
    settings = read_settings({"HOME": "/home/somebody"})
    assert settings.cache == Path("/home/somebody/.cache/atom-devcluster")
    assert settings.state == Path("/var/lib/atom-devcluster")
    assert not settings.cache.is_relative_to(REPOSITORY)


def test_xdg_folders_are_followed() -> None:
    settings = read_settings({"XDG_CACHE_HOME": "/c", "XDG_STATE_HOME": "/s"})
    assert (settings.cache, settings.state) == (
        Path("/c/atom-devcluster"),
        Path("/s/atom-devcluster"),
    )


def test_another_instance_shares_the_cache_and_nothing_else() -> None:
    first = read_settings({"HOME": "/h"})
    other = read_settings({"HOME": "/h", "ATOM_DEVCLUSTER_INSTANCE": "3"})
    assert first.cache == other.cache
    assert first.state != other.state
    assert first.lock_file != other.lock_file
    assert first.name != other.name


@pytest.mark.parametrize("text", ["-1", "63", "one", "1.0"])
def test_an_instance_that_is_no_small_number_is_refused(text: str) -> None:
    with pytest.raises(DevclusterError, match="number from 0 to 62"):
        read_settings({"ATOM_DEVCLUSTER_INSTANCE": text})


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("/" + "long/" * 20, "longer than 70"),
        ("relative/folder", "not an absolute path"),
        ("/run/cluster", "virtual file system"),
    ],
)
def test_a_state_folder_that_cannot_work_is_refused_with_the_reason(
    folder: str, reason: str
) -> None:
    with pytest.raises(DevclusterError, match=reason):
        read_settings({"ATOM_DEVCLUSTER_STATE": folder})
