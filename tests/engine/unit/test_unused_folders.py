"""Of a claim only what its own downloads made and nothing uses is removed."""

from __future__ import annotations

import json
import shutil
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from atom.model_source.snapshot_folder import locked_folder
from atom.model_source.unused_folders import MARK, KeptList, Removed, note_use, remove_unused

OURS, THEIRS = "uid-of-our-claim", "uid-of-their-claim"
HOUR = 3600.0


class Claim:
    """A folder that stands for a mounted claim; `put` makes what a download of long ago left."""

    def __init__(self, root: Path) -> None:
        self.root, self.own = root, root / "new--model" / "main"
        self.own.mkdir(parents=True)

    def put(self, name: str, *owners: str, hours_ago: float = 24, size: int = 100) -> Path:
        folder = self.root / name
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"x" * size)
        at = time.time() - hours_ago * HOUR
        if owners:
            (folder / MARK).write_text(json.dumps({"owners": dict.fromkeys(owners, at)}))
        return folder

    def prune(
        self, *kept: str, wanted: int | None = None, minutes_ago: float = 0
    ) -> tuple[Removed, ...]:
        as_of = time.time() - 60 * minutes_ago
        return remove_unused(KeptList(self.root, OURS, kept, as_of), self.own, wanted)

    @property
    def models(self) -> set[str]:
        return {
            str(path.parent.relative_to(self.root)) for path in self.root.rglob("*.safetensors")
        }


@pytest.fixture
def claim(tmp_path: Path) -> Claim:
    return Claim(tmp_path / "models")


def test_what_nothing_uses_goes_with_its_bytes_and_what_is_used_stays(claim: Claim) -> None:
    old = claim.put("acme--old/main", OURS, size=1000)
    claim.put("acme--kept/v1", OURS)
    mark = (old / MARK).stat().st_size
    assert claim.prune("acme--kept/v1") == (Removed("acme--old/main", 1000 + mark),)
    assert claim.models == {"acme--kept/v1"}


@pytest.mark.parametrize(
    "kept", ["acme--x/v1", "acme--x", "acme--x/v1/deeper", "."], ids=["it", "above", "below", "all"]
)
def test_a_path_in_or_above_a_folder_uses_it(claim: Claim, kept: str) -> None:
    claim.put("acme--x/v1", OURS)
    assert claim.prune(kept) == ()
    assert claim.models == {"acme--x/v1"}


@pytest.mark.parametrize("owners", [(), (THEIRS,), (OURS, THEIRS)], ids=["none", "other", "both"])
def test_what_is_not_of_this_claim_alone_stays(claim: Claim, owners: tuple[str, ...]) -> None:
    claim.put("acme--x/v1", *owners)
    assert claim.prune() == ()
    assert claim.models == {"acme--x/v1"}


def test_foreign_files_and_links_stay(claim: Claim, tmp_path: Path) -> None:
    elsewhere = Claim(tmp_path / "elsewhere").put("acme--x/v1", OURS)
    (claim.root / "notes.txt").write_text("mine")
    (claim.root / "linked--model").symlink_to(elsewhere.parent)
    (claim.root / "acme--y").mkdir()
    (claim.root / "acme--y" / "v1").symlink_to(elsewhere)
    (claim.root / "acme--z").mkdir()
    (claim.root / "acme--z" / MARK).write_text(json.dumps({"owners": {OURS: 1.0}}))
    (claim.root / "acme--w" / "v1").mkdir(parents=True)
    (claim.root / "acme--w" / "v1" / MARK).write_text("no JSON")
    before = sorted(claim.root.rglob("*"))
    assert claim.prune() == ()
    assert [path for path in before if not path.name.endswith(".lock")] == [
        path for path in sorted(claim.root.rglob("*")) if not path.name.endswith(".lock")
    ]
    assert (elsewhere / "model.safetensors").exists()


def test_what_is_downloaded_now_or_was_used_since_the_list_stays(claim: Claim) -> None:
    under_way = claim.put("acme--x/v1", OURS)
    claim.put("acme--y/v1", OURS)
    note_use(claim.root / "acme--y" / "v1", OURS)
    with locked_folder(under_way):
        assert claim.prune() == ()
    assert claim.models == {"acme--x/v1", "acme--y/v1"}


def test_a_list_of_long_ago_removes_nothing(claim: Claim) -> None:
    claim.put("acme--x/v1", OURS)
    assert claim.prune(minutes_ago=61) == ()
    assert claim.models == {"acme--x/v1"}


def test_its_own_folder_stays_and_halves_of_a_download_go(claim: Claim) -> None:
    (claim.own / "model.safetensors").write_bytes(b"x")
    (claim.own / MARK).write_text(json.dumps({"owners": {OURS: 1.0}}))
    half = claim.put("acme--half/main", OURS)
    (half / "model.safetensors").rename(half / "model.safetensors.incomplete")
    assert [each.folder for each in claim.prune()] == ["acme--half/main"]
    assert claim.models == {"new--model/main"}


def test_a_removal_that_was_cut_off_is_ended(claim: Claim) -> None:
    going = claim.put("acme--x/v1", OURS)
    going.rename(going.with_name(".atom-removed-v1-1-1"))
    claim.prune("acme--x/v1")
    assert list((claim.root / "acme--x").glob(".atom-removed-*")) == []


Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("wanted", "stays"),
    [
        (0, {"a/1", "b/1", "c/1"}),
        (1100, {"a/1", "c/1"}),
        (2500, {"a/1"}),
        (10**9, {"a/1", "b/1", "c/1"}),
    ],
    ids=["there is room", "one is enough", "two are", "all would not be"],
)
def test_where_it_is_full_what_was_used_longest_ago_goes_first(
    claim: Claim, monkeypatch: pytest.MonkeyPatch, wanted: int, stays: set[str]
) -> None:
    for name, hours_ago in (("a/1", 1), ("b/1", 72), ("c/1", 24)):
        claim.put(name, OURS, hours_ago=hours_ago, size=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(9000, 8000, 1000))
    claim.prune("none", wanted=wanted)
    assert claim.models == stays


def test_uses_of_several_claims_are_all_remembered(claim: Claim) -> None:
    folder = claim.root / "acme--x" / "v1"
    note_use(folder, THEIRS)
    note_use(folder, OURS)
    stored: dict[str, Any] = json.loads((folder / MARK).read_text())
    assert set(stored["owners"]) == {OURS, THEIRS}
