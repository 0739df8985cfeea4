"""Which cluster is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from devcluster import target
from devcluster.cli import main
from devcluster.errors import DevclusterError
from devcluster.target import Kind


def test_the_embedded_cluster_is_the_default_whatever_kubeconfig_says() -> None:
    found = target.resolve({"HOME": "/h", "KUBECONFIG": "/other"})
    assert found.is_embedded
    assert found.kubeconfig == "/var/lib/atom-devcluster/kubeconfig"


def test_current_uses_the_kubeconfig_as_given() -> None:
    found = target.resolve({"CLUSTER": "current", "KUBECONFIG": "/a:/b"})
    assert (found.kind, found.kubeconfig) == (Kind.CURRENT, "/a:/b")


def test_current_without_a_variable_uses_the_users_file() -> None:
    assert target.resolve({"CLUSTER": "current", "HOME": "/h"}).kubeconfig == "/h/.kube/config"


def test_another_word_is_refused() -> None:
    with pytest.raises(DevclusterError, match="neither `embedded` nor `current`"):
        target.resolve({"CLUSTER": "prod"})


def test_an_unreachable_current_cluster_is_a_reason_not_an_exception(tmp_path: Path) -> None:
    environ = {"CLUSTER": "current", "KUBECONFIG": str(tmp_path / "none"), "HOME": str(tmp_path)}
    assert "does not answer" in str(target.why_unusable(environ))


@pytest.mark.parametrize("command", [["up"], ["load-image", "x.tar"], ["fake-amd"]])
def test_commands_of_the_embedded_cluster_refuse_another(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLUSTER", "current")
    assert main(command) == 1
    assert "CLUSTER=current is given" in capsys.readouterr().err


def test_env_prints_lines_for_a_shell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("ATOM_DEVCLUSTER_STATE", "/a state")
    monkeypatch.delenv("CLUSTER", raising=False)
    assert main(["env", "--shell"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "export KUBECONFIG='/a state/kubeconfig'",
        f'export PATH={tmp_path}/atom-devcluster/tools:"$PATH"',
    ]
