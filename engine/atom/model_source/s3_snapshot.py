"""S3Source: look up and download a model below a prefix of a bucket (s3://bucket/prefix).

It works with AWS and S3-compatible stores (MinIO, Ceph, R2). AWS_ENDPOINT_URL, AWS_REGION and
credentials come from the environment, as for other clients of S3, or from the pod's identity. An
object is complete if it has its size, since only some ETags are hashes of the content. If-Match
makes the server refuse an object that changed after it was listed.

Several threads download files; complete files survive a restart. Torch-free. The only dependency,
the extra `s3`, is imported when the user names a bucket.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from atom.errors import ModelError
from atom.model_source.snapshot_folder import Snapshot, SourceFile, has_size, is_needed

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEME = "s3://"
_PIECE_BYTES = 8 << 20
_THREADS = 4
# In the files' folder: the ETag of each complete file, and the incomplete ones.
_KEPT = ".cache/s3"
_REMEDY = (
    "check the bucket and prefix, AWS_ENDPOINT_URL and AWS_REGION, and that the credentials "
    "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY; spec.model.s3.secretRef) may list and read it"
)


class S3Source:
    """Read the model below one prefix of a bucket. store: the bucket; default: the bucket that
    `model` names, opened with the environment's credentials."""

    def __init__(self, model: str, store: ObjectStore | None = None) -> None:
        bucket, _, prefix = model.removeprefix(SCHEME).partition("/")
        self._prefix = prefix.strip("/")
        self._store = store if store is not None else _open_bucket(model, bucket)

    def look_up(self, model: str, revision: str) -> Snapshot:
        """List the objects below the prefix as one snapshot; its commit is a hash of names and
        ETags. Raises `ModelError`."""
        try:
            listed = [item for page in self._store.list(self._prefix or None) for item in page]
        except Exception as error:  # one type for each of the client's faults
            raise _refused(model, error) from error
        files = []
        for item in listed:
            name = item["path"].removeprefix(self._prefix).lstrip("/")
            if is_needed(name) and ".." not in PurePosixPath(name).parts:
                files.append(SourceFile(name, item["size"], etag=item["e_tag"]))
        files.sort(key=lambda file: file.name)
        if not any(file.name.endswith(".safetensors") for file in files):
            raise ModelError(
                f"{model} has no safetensors files; name the prefix that config.json and "
                "*.safetensors are directly below"
            )
        stated = "\n".join(f"{file.name} {file.etag} {file.size_bytes}" for file in files)
        commit = hashlib.sha256(stated.encode()).hexdigest()[:40]
        return Snapshot(model, revision, commit, tuple(files))

    def fetch(self, folder: Path, snapshot: Snapshot) -> None:
        """Download the files that the folder does not have yet. Raises `ModelError`."""
        with ThreadPoolExecutor(_THREADS) as threads:
            done = [threads.submit(self._fetch_file, folder, file) for file in snapshot.files]
            try:
                for each in done:
                    each.result()
            except ModelError:
                threads.shutdown(wait=False, cancel_futures=True)
                raise
            except Exception as error:  # one type for each of the client's faults
                threads.shutdown(wait=False, cancel_futures=True)
                raise _refused(snapshot.model, error) from error

    def read(self, model: str, name: str) -> bytes:
        """Read one small file. Raises `ModelError`."""
        try:
            return bytes(self._store.get(self._key(name)).bytes())
        except Exception as error:  # one type for each of the client's faults
            raise _refused(model, error) from error

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def _fetch_file(self, folder: Path, file: SourceFile) -> None:
        target, kept = folder / file.name, folder / _KEPT / file.name
        whole, half = kept.with_name(f"{kept.name}.etag"), kept.with_name(f"{kept.name}.incomplete")
        if has_size(target, file.size_bytes) and _text(whole) == file.etag:
            return
        for path in (target, half):
            path.parent.mkdir(parents=True, exist_ok=True)
        answer = self._store.get(self._key(file.name), options={"if_match": file.etag})
        with half.open("wb") as content:
            for piece in answer.stream(min_chunk_size=_PIECE_BYTES):
                content.write(piece)
            content.flush()
            os.fsync(content.fileno())
        if not has_size(half, file.size_bytes):
            raise ModelError(
                f"{file.name} came with {half.stat().st_size} bytes and not {file.size_bytes}; the "
                "next attempt downloads it again"
            )
        half.replace(target)
        whole.write_text(file.etag or "", encoding="utf-8")


def downloaded_folder(model: str) -> Path:
    """Return the folder for a bucket's model that the engine downloads itself."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "atom" / "s3" / model.removeprefix(SCHEME).strip("/").replace("/", "--")


def _open_bucket(model: str, bucket: str) -> ObjectStore:
    try:
        from obstore.store import S3Store
    except ImportError as error:
        raise ModelError(
            f"{model}: models in buckets need the package obstore; pip install 'atom-platform[s3]'"
        ) from error
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    # Only an explicit http:// address is used without encryption.
    plain = endpoint.startswith("http://")
    try:
        return S3Store(bucket, client_options={"allow_http": plain})
    except Exception as error:  # one type for each of the client's faults
        raise _refused(model, error) from error


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None


def _refused(model: str, error: Exception) -> ModelError:
    reason = str(error).strip().splitlines()
    said = f"{type(error).__name__}: {reason[0]}" if reason else type(error).__name__
    return ModelError(f"{model} could not be read ({said}); {_REMEDY}")
