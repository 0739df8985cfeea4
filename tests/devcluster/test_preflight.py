"""Refusals: one sentence, with the remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from devcluster import preflight
from devcluster.settings import REPOSITORY


def test_another_system_than_linux_is_refused() -> None:
    assert "Linux only" in str(preflight.why_not_here(platform="darwin", user_id=0))


def test_an_ordinary_user_is_refused_with_the_alternatives() -> None:
    reason = str(preflight.why_not_here(platform="linux", user_id=1000))
    assert "needs root" in reason
    assert "CLUSTER=current" in reason


def test_root_on_linux_is_accepted() -> None:
    assert preflight.why_not_here(platform="linux", user_id=0) is None


def test_only_packages_of_missing_programs_are_wanted(tmp_path: Path) -> None:
    tools = {"containerd": "containerd", "ctr": "containerd", "ip": "iproute2"}
    (tmp_path / "bridge").touch()
    missing = {"containerd", "ctr"}

    def find(tool: str) -> str | None:
        return None if tool in missing else f"/usr/bin/{tool}"

    assert preflight.missing_packages(tools, find, [tmp_path]) == ["containerd"]
    assert preflight.missing_packages(tools, find, [tmp_path / "none"]) == [
        "containerd",
        "containernetworking-plugins",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="drops from root to an ordinary user")
@pytest.mark.parametrize("command", ["up", "down", "status", "images"])
def test_commands_refuse_an_ordinary_user_in_one_line(command: str, tmp_path: Path) -> None:
    code = (  # imported before the change of user, who may not be able to read the interpreter
        "import os, sys; from devcluster.cli import main; os.setgid(65534); os.setuid(65534);"
        "sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, command],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "HOME": str(tmp_path), "CLUSTER": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "needs root" in done.stderr


def test_a_missing_go_is_named_with_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(preflight.DevclusterError, match="install Go"):
        preflight.require_go()
