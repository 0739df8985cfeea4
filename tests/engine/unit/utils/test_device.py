from __future__ import annotations

import pytest

from atom.utils import device
from atom.utils.device import detect_device


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "usable_cpus", lambda: 8)


@pytest.mark.parametrize(
    ("said", "sharers", "threads"),
    [
        (None, 1, 8),
        (None, 3, 2),
        (None, 9, 1),
        ("3", 1, 3),
        ("3,2", 1, 3),
        ("3", 4, 2),
        ("64", 1, 8),
        ("0", 1, 8),
        ("many", 1, 8),
        ("", 1, 8),
    ],
)
def test_threads_are_the_cores_share_or_fewer_if_the_environment_says_so(
    eight_cores: None,
    monkeypatch: pytest.MonkeyPatch,
    said: str | None,
    sharers: int,
    threads: int,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if said is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert detect_device("cpu", sharers=sharers).threads() == threads
