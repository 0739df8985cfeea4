"""LoadablePaths: the places from which a request may have files loaded.

A path in a request would have the server read any folder, and fetch from any bucket and repository,
that it can reach. So only the places of the start and of the flags are allowed. A refusal does not
reveal whether a folder exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from atom.checkpoint import is_hub_id
from atom.entrypoints.http.access_options import AccessOptions
from atom.entrypoints.http.errors import shortened
from atom.errors import RequestError

_LORA_FLAG = "--allowed-lora-paths"
_WEIGHTS_FLAG = "--allowed-weights-paths"
_BUCKET = "s3://"
_FOLDER_STARTS = ("/", ".", "~")


@dataclass(frozen=True, slots=True)
class LoadablePaths:
    """Hold the places that one flag names. allowed: folders (values that begin with /, . or ~),
    buckets with or without a prefix, hub ids, and `org/` for all ids of an organisation."""

    flag: str
    allowed: tuple[str, ...] = ()

    def check(self, path: str, started: Iterable[str], param: str) -> None:
        """Raise `RequestError` (403) for a path that is in none of the places. started: paths that
        the server was started with; param: the field that names the path."""
        if path in started or any(_is_in(path, place) for place in self.allowed):
            return
        raise RequestError(
            f"{param}: {shortened(path)} is none of the places that requests may load from; start "
            f"the server with {self.flag} and the folder, hub id or bucket",
            param=param,
            status=403,
        )


@dataclass(frozen=True, slots=True)
class LoadableByRequests:
    """Hold the places of adapters and of weights. model: as the server was started with."""

    loras: LoadablePaths = LoadablePaths(_LORA_FLAG)
    weights: LoadablePaths = LoadablePaths(_WEIGHTS_FLAG)
    model: str = ""

    @staticmethod
    def of(options: AccessOptions, model: str) -> LoadableByRequests:
        """Take the places that the flags name."""
        return LoadableByRequests(
            LoadablePaths(_LORA_FLAG, options.lora_paths),
            LoadablePaths(_WEIGHTS_FLAG, options.weights_paths),
            model,
        )


def _is_in(path: str, place: str) -> bool:
    if place.startswith(_BUCKET):
        parts = PurePosixPath(path.removeprefix(_BUCKET)).parts
        within = path == place or path.startswith(f"{place.rstrip('/')}/")
        return within and ".." not in parts and "\0" not in path
    if place.startswith(_FOLDER_STARTS):
        return not path.startswith(_BUCKET) and _is_below(path, place)
    if not is_hub_id(path):
        return False
    return path.startswith(place) if place.endswith("/") else path == place


def _is_below(path: str, folder: str) -> bool:
    """Return whether a path, its links followed, is a folder or within it."""
    if "\0" in path:
        return False
    try:
        real, real_folder = (Path(each).expanduser().resolve() for each in (path, folder))
    except (OSError, RuntimeError):  # a circle of links, or an unknown user's home
        return False
    return real.is_relative_to(real_folder)
