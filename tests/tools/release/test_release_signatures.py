"""A release that was changed in any file, or signed by another, is refused with the file's name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.release.keys import key_files
from tests.support.release.small_repository import exported, small_repository
from tools.release import signing
from tools.release.archives import sha256
from tools.release.contents import contents, verify
from tools.release.errors import ReleaseError
from tools.release.provenance import Build


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return key_files(tmp_path_factory.mktemp("keys"), "own")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, keys: tuple[Path, Path]) -> dict[str, bytes]:
    repository = small_repository(tmp_path_factory.mktemp("repository"))
    source = exported(repository, tmp_path_factory.mktemp("export") / "one")
    key = signing.read_private_key(keys[0], None)
    return contents(source, {}, Build("https://ci.test/builder", None, {}), key)


@pytest.fixture
def release(made: dict[str, bytes], tmp_path: Path) -> Path:
    folder = tmp_path / "0.1.0"
    folder.mkdir()
    for name, data in made.items():
        (folder / name).write_bytes(data)
    return folder


def test_a_release_is_what_its_key_signed(release: Path, keys: tuple[Path, Path]) -> None:
    assert len(verify(release, signing.read_public_key(keys[1]))) == 10


def test_no_file_can_be_changed(
    release: Path, keys: tuple[Path, Path], made: dict[str, bytes]
) -> None:
    public = signing.read_public_key(keys[1])
    for name, data in made.items():
        middle = len(data) // 2
        (release / name).write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        with pytest.raises(ReleaseError, match="SHA256SUMS" if "SHA256" in name else name):
            verify(release, public)
        (release / name).write_bytes(data)
    verify(release, public)


def test_no_file_can_be_added_or_taken_away(release: Path, keys: tuple[Path, Path]) -> None:
    public = signing.read_public_key(keys[1])
    (release / "more.whl").touch()
    with pytest.raises(ReleaseError, match=r"more\.whl is no file of this release"):
        verify(release, public)
    (release / "more.whl").unlink()
    (release / "release-notes.md").unlink()
    with pytest.raises(ReleaseError, match=r"release-notes\.md is missing"):
        verify(release, public)


def test_another_key_has_not_signed_it(release: Path, tmp_path: Path) -> None:
    _, public = key_files(tmp_path, "other")
    with pytest.raises(ReleaseError, match="SHA256SUMS is not signed by this key"):
        verify(release, signing.read_public_key(public))


def test_a_statement_of_other_files_is_no_provenance(
    release: Path, keys: tuple[Path, Path], made: dict[str, bytes]
) -> None:
    """Though the key signed all of it."""
    key = signing.read_private_key(keys[0], None)
    (name,) = (name for name in made if name.endswith(".intoto.jsonl"))
    said = json.loads(signing.open_envelope(key.public_key(), made[name], name))
    said["subject"] = [i for i in said["subject"] if not i["name"].endswith(".whl")]
    forged = signing.envelope(key, json.dumps(said).encode())
    sums = made["SHA256SUMS"].decode().replace(sha256(made[name]), sha256(forged)).encode()
    (release / name).write_bytes(forged)
    (release / "SHA256SUMS").write_bytes(sums)
    (release / "SHA256SUMS.sig").write_text(signing.sign(key, sums))
    with pytest.raises(ReleaseError, match=r"is not of atom_platform.*\.whl"):
        verify(release, key.public_key())


def _with_wrong_password(folder: Path) -> Path:
    return key_files(folder, "shut", "secret")[0]


def _no_key(folder: Path) -> Path:
    (folder / "text").write_text("no key")
    return folder / "text"


@pytest.mark.parametrize("file", [_with_wrong_password, _no_key, lambda folder: folder / "absent"])
def test_a_key_that_cannot_be_read_is_an_error_with_the_remedy(
    tmp_path: Path, file: Callable[[Path], Path]
) -> None:
    with pytest.raises(ReleaseError, match="COSIGN_PASSWORD"):
        signing.read_private_key(file(tmp_path), "wrong")
