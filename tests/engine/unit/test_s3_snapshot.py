"""A model below a prefix of a bucket gets into a folder whole, and only what serving needs."""

from __future__ import annotations

from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore

from atom.errors import ModelError
from atom.model_source.s3_snapshot import S3Source
from atom.model_source.snapshot_folder import (
    MARKER,
    Snapshot,
    WithoutWeights,
    ensure_snapshot,
    read_marker,
)

MODEL = "s3://models/acme/tiny"
FILES = {
    "config.json": b"{}",
    "model-1-of-2.safetensors": b"first" * 1000,
    "model-2-of-2.safetensors": b"second" * 1000,
    "modeling_acme.py": b"raise SystemExit('code of the bucket was run')",
    "pytorch_model.bin": b"pickle",
}
SERVED = {name for name in FILES if not name.endswith((".py", ".bin"))}


def bucket(files: dict[str, bytes] = FILES) -> MemoryStore:
    store = MemoryStore()
    for name, content in files.items():
        obstore.put(store, f"acme/tiny/{name}", content)
    obstore.put(store, "acme/tiny-2/model.safetensors", b"of another model")
    return store


def fetch(store: MemoryStore, folder: Path) -> Snapshot:
    return ensure_snapshot(S3Source(MODEL, store), MODEL, None, folder)


def test_a_prefix_is_fetched_once_and_without_its_code(tmp_path: Path) -> None:
    store, folder = bucket(), tmp_path / "tiny"
    first = fetch(store, folder)
    assert {file.name for file in first.files} == SERVED
    assert {name: (folder / name).read_bytes() for name in SERVED} == {
        name: FILES[name] for name in SERVED
    }
    assert not (folder / "modeling_acme.py").exists()
    assert read_marker(folder) == first
    assert fetch(MemoryStore(), folder) == first, "a complete folder needs no bucket"


def test_a_server_whose_workers_hold_the_weights_fetches_none(tmp_path: Path) -> None:
    found = ensure_snapshot(WithoutWeights(S3Source(MODEL, bucket())), MODEL, None, tmp_path)
    assert [file.name for file in found.files] == ["config.json"]
    assert not list(tmp_path.glob("*.safetensors"))


def test_what_is_whole_is_kept_and_what_has_changed_meanwhile_is_not(tmp_path: Path) -> None:
    store, folder = bucket(), tmp_path / "tiny"
    first = fetch(store, folder)
    (folder / MARKER).unlink()  # as where it was killed before it ended
    changed = "model-2-of-2.safetensors"
    kept = (folder / "model-1-of-2.safetensors").stat().st_ino
    obstore.put(store, f"acme/tiny/{changed}", b"SECOND" * 1000)  # as long as before
    second = fetch(store, folder)
    assert (folder / changed).read_bytes() == b"SECOND" * 1000
    assert (folder / "model-1-of-2.safetensors").stat().st_ino == kept
    assert first.commit != second.commit


def test_an_object_that_changes_after_it_was_listed_is_refused(tmp_path: Path) -> None:
    store = bucket()
    source = S3Source(MODEL, store)
    listed = source.look_up(MODEL, "main")
    obstore.put(store, "acme/tiny/config.json", b"[]")
    with pytest.raises(ModelError, match=r"(?s)s3://models/acme/tiny could not be read \(Precond"):
        source.fetch(tmp_path, listed)
    assert not (tmp_path / "config.json").exists()


def test_a_prefix_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no safetensors files"):
        fetch(bucket({"config.json": b"{}"}), tmp_path / "tiny")


def test_one_file_is_read_without_the_others() -> None:
    assert S3Source(MODEL, bucket()).read(MODEL, "config.json") == b"{}"
    with pytest.raises(ModelError, match="may list and read it"):
        S3Source(MODEL, bucket()).read(MODEL, "none.json")
