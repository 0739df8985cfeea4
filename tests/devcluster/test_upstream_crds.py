"""Where the CRDs of other systems come from; what they are for is tested on a cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from devcluster.errors import DevclusterError
from devcluster.programs.upstream_crds import CrdModule, ensure_upstream_crds
from devcluster.settings import Settings, read_settings

MODULE = CrdModule("example.com/crds", "v1.2.3", "h1:right=", "crds", ("things",))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(cache=tmp_path / "cache", state=tmp_path)


def proxy_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checksum: str) -> Path:
    """A `go` whose download of the module has this checksum; returns what notes its calls."""
    source, calls = tmp_path / "module" / "crds", tmp_path / "calls"
    source.mkdir(parents=True)
    (source / "things.yaml").write_text("kind: CustomResourceDefinition")
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    answer = f'{{"Sum": "{checksum}", "Dir": "{source.parent}"}}'
    go.write_text(
        "#!/bin/sh\n"
        'case $1 in version) echo "go version go1.30.0 linux/amd64"; exit;; esac\n'
        f'echo "$@" >> {calls}\n'
        f"echo '{answer}'\n"
    )
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(go.parent), prepend=os.pathsep)
    return calls


def test_a_module_is_downloaded_once_in_the_version_that_is_pinned(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = proxy_gives(tmp_path, monkeypatch, "h1:right=")
    folder = ensure_upstream_crds(settings, [MODULE])
    assert [path.name for path in folder.iterdir()] == ["things.yaml"]
    assert ensure_upstream_crds(settings, [MODULE]) == folder
    assert calls.read_text() == "mod download -json example.com/crds@v1.2.3\n"


def test_another_checksum_is_refused_and_nothing_is_kept(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy_gives(tmp_path, monkeypatch, "h1:wrong=")
    with pytest.raises(DevclusterError, match=r"checksum h1:wrong=, not h1:right="):
        ensure_upstream_crds(settings, [MODULE])
    assert not list(settings.cache.glob("*crds-*"))


@pytest.mark.cluster
def test_every_file_is_the_crd_that_its_name_says() -> None:
    for path in ensure_upstream_crds(read_settings(os.environ)).iterdir():
        crd = yaml.safe_load(path.read_text())
        assert crd["kind"] == "CustomResourceDefinition"
        assert path.stem == f"{crd['spec']['group']}_{crd['spec']['names']['plural']}"
