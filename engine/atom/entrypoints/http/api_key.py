"""Clients' API keys: where a program reads them, and how it follows a file or folder of keys.

Light to import: the command line reads it before any server is loaded.
"""

from __future__ import annotations

import hmac
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atom.errors import ConfigError

API_KEY_VARIABLE = "ATOM_API_KEY"
ADMIN_KEY_VARIABLE = "ATOM_ADMIN_API_KEY"
SECRET_VARIABLE = "ATOM_HANDOVER_SECRET"
KEY_FILE_FLAG = "--api-key-file"
ADMIN_FILE_FLAG = "--admin-api-key-file"
SECRET_FILE_FLAG = "--handover-secret-file"

MOST_KEYS = 256
MOST_NAME_CHARACTERS = 48

_LOOK_SECONDS = 1.0
_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{MOST_NAME_CHARACTERS}}}")
_Version = tuple[tuple[str, int, int], ...]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NamedKey:
    """Hold a key. name: its name in metrics, never the key; empty if it has none."""

    name: str
    key: str


@dataclass(frozen=True, slots=True)
class KeyNames:
    """Name the flags and the variable by which a program gets keys of one kind."""

    flag: str
    file_flag: str
    variable: str


USER_KEYS = KeyNames("--api-key", KEY_FILE_FLAG, API_KEY_VARIABLE)
ADMIN_KEYS = KeyNames("--admin-api-key", ADMIN_FILE_FLAG, ADMIN_KEY_VARIABLE)
SECRETS = KeyNames("--handover-secret", SECRET_FILE_FLAG, SECRET_VARIABLE)


@dataclass(frozen=True, slots=True)
class KeyFile:
    """Locate followed keys, with those found at the start. path: a file with one key, a file with a
    line `NAME: KEY` for each, or a folder with a file for each, named after it. flag: the
    command-line flag that names it."""

    path: Path
    found: tuple[NamedKey, ...]
    flag: str = KEY_FILE_FLAG


class FollowedKeys:
    """Hold keys, some of them in a file or folder that may change while the server runs, as a
    Secret does.

    The keys read last count until the file has a valid key again: a file that is being written, or
    gone, closes no server. `monotonic` is a clock in seconds; the file is read at most once a
    second.
    """

    def __init__(
        self,
        keys: Sequence[str],
        file: KeyFile | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        kept_seconds: float = 0.0,
    ) -> None:
        """keys: fixed ones. kept_seconds: how long keys removed from the file still count, after
        the present ones: until all programs that share them have seen the new ones."""
        self._fixed = [(key.encode(), "") for key in keys]
        self._found = [] if file is None else [(key.key.encode(), key.name) for key in file.found]
        self._path = None if file is None else file.path
        self._flag = KEY_FILE_FLAG if file is None else file.flag
        self._monotonic = monotonic
        self._looked_at = float("-inf")
        self._seen: _Version | None = None
        self._kept_seconds = kept_seconds
        self._former: list[tuple[bytes, str]] = []
        self._former_until = float("-inf")

    def __bool__(self) -> bool:
        return bool(self._fixed or self._found)

    @property
    def count(self) -> int:
        """Return how many keys count now."""
        return len(self._current())

    def current(self) -> list[bytes]:
        """List the keys that count now."""
        return [key for key, _ in self._current()]

    def name_of(self, given: bytes) -> str | None:
        """Return the name of a valid key, empty if it has none; None for an invalid one. All keys
        are compared, so that the time reveals none."""
        found: str | None = None
        for key, name in self._current():
            if hmac.compare_digest(given, key):
                found = found or name
        return found

    def _current(self) -> list[tuple[bytes, str]]:
        if self._path is not None and self._monotonic() - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = self._monotonic()
            self._look(self._path)
        if self._former and self._monotonic() >= self._former_until:
            self._former = []
        return [*self._fixed, *self._found, *self._former]

    def _look(self, path: Path) -> None:
        try:
            version = _version(path)
        except OSError:
            return
        if version == self._seen:
            return
        self._seen = version
        try:
            keys = _read_keys(path, self._flag, skips_invalid=True)
        except ConfigError as error:
            logger.warning("the keys from before still count: %s", error)
            return
        found = [(key.key.encode(), key.name) for key in keys]
        if found != self._found:
            if self._kept_seconds:
                self._former = [key for key in self._found if key not in found]
                self._former_until = self._monotonic() + self._kept_seconds
            self._found = found
            logger.info("API keys have changed: %d count now, from %s", len(found), path)


def read_key_file(path: Path | None, flag: str = KEY_FILE_FLAG) -> KeyFile | None:
    """Read the keys of a file or folder. flag: that names it. Raises `ConfigError` for an invalid
    one."""
    if path is None:
        return None
    return KeyFile(path.absolute(), _read_keys(path, flag, skips_invalid=False), flag)


def _version(path: Path) -> _Version:
    """Return the value whose change means changed keys: of a folder, its files' names, times and
    inodes."""
    files = _files_in(path) if path.is_dir() else [path]
    found = ((file.name, file.stat()) for file in files)
    return tuple((name, each.st_mtime_ns, each.st_ino) for name, each in found)


def _files_in(folder: Path) -> list[Path]:
    """List a folder's files; a mounted Secret's own links begin with a dot."""
    return sorted(
        file for file in folder.iterdir() if not file.name.startswith(".") and file.is_file()
    )


def _read_keys(path: Path, flag: str, *, skips_invalid: bool) -> tuple[NamedKey, ...]:
    """Read the keys. Raises `ConfigError` if there are none, or too many, or an invalid one, unless
    invalid ones are skipped: one bad entry must not block the change of a Secret."""
    source = f"{flag} {path}"
    try:
        if path.is_dir():
            lines = [(file.name, file.read_text(encoding="utf-8")) for file in _files_in(path)]
        else:
            text = path.read_text(encoding="utf-8")
            lines = _named_lines(text) or [("", text)]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{source}: cannot be read ({error}); name text files") from error
    keys = []
    for name, text in lines:
        place = f"{source}, {name}" if name else source
        try:
            keys.append(NamedKey(_checked_name(place, name), _checked(place, text)))
        except ConfigError as error:
            if not skips_invalid or not name:
                raise
            logger.warning("a key is left out: %s", error)
    if not 0 < len(keys) <= MOST_KEYS:
        raise ConfigError(f"{source}: has {len(keys)} keys; give 1 to {MOST_KEYS}")
    return tuple(keys)


def _named_lines(text: str) -> list[tuple[str, str]]:
    """Return the names and keys of a file of several; empty for a file that is one key."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not all(": " in line for line in lines):
        return []
    parts = (line.partition(": ") for line in lines)
    return [(name.strip(), key) for name, _, key in parts]


def _checked_name(source: str, name: str) -> str:
    if name and not _NAME.fullmatch(name):
        raise ConfigError(
            f"{source}: the name of a key has letters, digits, dots, dashes and underscores, at "
            f"most {MOST_NAME_CHARACTERS}"
        )
    return name


def read_api_keys(
    line: Sequence[str],
    file: Path | None,
    environment: Mapping[str, str],
    names: KeyNames = USER_KEYS,
) -> tuple[str, ...]:
    """Read the fixed keys: those of the command line; without any, and without a file, the
    environment's. Raises `ConfigError`."""
    if line:
        logger.warning(
            "%s: a key on the command line is seen by everybody on this machine (ps); use %s FILE "
            "or the variable %s",
            names.flag,
            names.file_flag,
            names.variable,
        )
        return tuple(dict.fromkeys(_checked(names.flag, text) for text in line))
    text = None if file is not None else environment.get(names.variable)
    return () if text is None else (_checked(f"the variable {names.variable}", text),)


def read_api_key(file: Path | None, environment: Mapping[str, str]) -> str | None:
    """Read the key from the file, else from the environment, else None. Raises `ConfigError`."""
    if file is None:
        source, text = f"the variable {API_KEY_VARIABLE}", environment.get(API_KEY_VARIABLE)
        if text is None:
            return None
    else:
        source = f"--api-key-file {file}"
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"{source}: cannot be read ({error}); name a text file") from error
    return _checked(source, text)


def _checked(source: str, text: str) -> str:
    key = text.strip()
    if not (key and key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError(
            f"{source}: must hold one key of printable ASCII characters without spaces"
        )
    return key
