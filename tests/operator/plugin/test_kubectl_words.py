"""kubectl's errors in words that say what, where and the remedy; the real kubectl says them."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from atom_operator.kubectl_atom import main
from atom_operator.plugin.kubectl_words import in_our_words
from devcluster.settings import read_settings

SAID: dict[str, tuple[str, str]] = {
    "no context": ("error: current-context must exist in order to minify", "no cluster is config"),
    "no file": (
        "The connection to the server localhost:8080 was refused - did you specify the right host",
        "no cluster is configured: set KUBECONFIG",
    ),
    "no such context": ('error: context "prod" does not exist', "has no context prod"),
    "not there": (
        'Error from server (NotFound): atomdeployments.serving.atom.dev "nope" not found',
        "there is no AtomDeployment nope in namespace team",
    ),
    "no service": (
        'Error from server (NotFound): services "chat" not found',
        "AtomDeployment chat in namespace team has no Service yet",
    ),
    "no namespace": (
        'Error from server (NotFound): namespaces "x" not found',
        "there is no namespace x",
    ),
    "no CRD": (
        'error: the server doesn\'t have a resource type "atomdeployments"',
        "this cluster knows no AtomDeployments: install the operator's chart",
    ),
    "no right": (
        'Error from server (Forbidden): pods is forbidden: User "me" cannot list resource "pods"',
        'you may not do that in this cluster (User "me" cannot list resource "pods")',
    ),
    "nobody there": (
        "The connection to the server 10.0.0.1:6443 was refused - did you specify the right host "
        "or port?",
        "the cluster at 10.0.0.1:6443 does not answer",
    ),
    "expired": ("error: You must be logged in to the server (Unauthorized)", "have expired"),
    "anything else": ("error: one two\nthree", "one two three"),
}


@pytest.mark.parametrize("what", SAID)
def test_what_kubectl_says_is_told_in_our_words(what: str) -> None:
    theirs, ours = SAID[what]
    told = in_our_words(theirs, "team")
    assert ours in told
    assert "\n" not in told
    assert not told.startswith("error")


@pytest.fixture
def kubectl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The real one, in a home without a kubeconfig."""
    tools = read_settings(os.environ).tools
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    if shutil.which("kubectl", path=path) is None:
        pytest.skip("kubectl is not on this machine; make cluster-up builds it")
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "")
    monkeypatch.delenv("KUBECONFIG", raising=False)


def config(folder: Path, server: str) -> str:
    path = folder / "config"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    path.write_text(json.dumps(content))
    return str(path)


@pytest.mark.usefixtures("kubectl")
@pytest.mark.parametrize("command", ["status", "why", "top", "logs", "chat"])
def test_without_a_cluster_every_command_says_how_to_name_one(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "nope"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: no cluster is configured: set KUBECONFIG")
    assert error.count("\n") == 1


@pytest.mark.usefixtures("kubectl")
def test_a_context_and_a_cluster_that_are_not_there_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = config(tmp_path, f"http://127.0.0.1:{port}")
    assert main(["--kubeconfig", path, "--context", "prod", "status", "chat"]) == 2
    assert "has no context prod" in capsys.readouterr().err
    assert main(["--kubeconfig", path, "-n", "team", "status", "chat"]) == 2
    assert f"127.0.0.1:{port}" in capsys.readouterr().err
