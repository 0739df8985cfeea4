"""The keys of which clients must send one: where a program takes them from, and how it follows the
one in a file.

Light to import: the command line reads it before any server is loaded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from atom.errors import ConfigError

API_KEY_VARIABLE = "ATOM_API_KEY"

_LOOK_SECONDS = 1.0
logger = logging.getLogger(__name__)


class FollowedKeys:
    """Keys, one of them in a file that may be replaced while the server runs, as a Secret is.

    What was read last counts until another valid key stands there: a file that is being written, or
    gone, closes no server. `monotonic` is a clock in seconds; one look a second at most.
    """

    def __init__(
        self,
        keys: Sequence[str],
        file: Path | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keys`: all of them; of the file's, where there is one, as it was read: the last."""
        self._fixed = [key.encode() for key in (keys[:-1] if file else keys)]
        self._found = [key.encode() for key in (keys[-1:] if file else ())]
        self._file = file
        self._monotonic = monotonic
        self._looked_at = float("-inf")
        self._seen: tuple[int, int] | None = None

    def __bool__(self) -> bool:
        return bool(self._fixed or self._found)

    def current(self) -> list[bytes]:
        """List the keys that count now."""
        if self._file is not None and self._monotonic() - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = self._monotonic()
            self._look(self._file)
        return [*self._fixed, *self._found]

    def _look(self, file: Path) -> None:
        try:
            status = file.stat()
        except OSError:
            return
        version = (status.st_mtime_ns, status.st_ino)
        if version == self._seen:
            return
        self._seen = version
        try:
            key = read_api_key(file, {})
        except ConfigError as error:
            logger.warning("the key from before still counts: %s", error)
            return
        if key is not None and [key.encode()] != self._found:
            self._found = [key.encode()]
            logger.info("another API key counts now, from %s", file)


def read_api_keys(
    line: Sequence[str], file: Path | None, environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Read the keys of the command line, and last the one of the file; without any, the
    environment's. Raises `ConfigError`."""
    if line:
        logger.warning(
            "--api-key: a key on the command line is seen by everybody on this machine (ps); use "
            "--api-key-file FILE or the variable %s",
            API_KEY_VARIABLE,
        )
    keys = [_checked("--api-key", text) for text in line]
    found = None if line and file is None else read_api_key(file, environment)
    if found is None:
        return tuple(dict.fromkeys(keys))
    return tuple(dict.fromkeys([*(key for key in keys if key != found), found]))


def read_api_key(file: Path | None, environment: Mapping[str, str]) -> str | None:
    """The key from the file, else from the environment, else None. Raises `ConfigError`."""
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
