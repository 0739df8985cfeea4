"""Compile a library of C sources once per machine and keep it in the user's cache folder.

The file's name is a hash of its inputs: sources, flags, compiler and processor. A library is only
loaded if it belongs to this user and no other user may write it. If the cache cannot be written, a
temporary folder of this process is used.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from atom.utils.cache_folder import cache_folder

_COMPILERS = ("gcc", "cc")
_COMPILE_SECONDS = 120


class BuildError(Exception):
    """A library cannot be compiled here; the message gives the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class CSources:
    """The sources of a library. name: of its folder in the cache; folder: all .c files in it are
    compiled; flags: of the compiler."""

    name: str
    folder: Path
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A C toolchain; `compiler` is the path of one that takes GCC's options."""

    compiler: str


def find_toolchain() -> Toolchain:
    """Find a C compiler. Raises `BuildError` if there is none, or if the system is not
    supported."""
    if sys.platform != "linux":
        raise BuildError(f"its threads are made for Linux, not {sys.platform}")
    names = [os.environ["CC"]] if os.environ.get("CC") else list(_COMPILERS)
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        raise BuildError(f"no C compiler ({', '.join(names)}); install gcc, or set CC")
    return Toolchain(found)


@contextmanager
def built_library(sources: CSources, toolchain: Toolchain) -> Iterator[Path]:
    """Yield the library, compiled if it is not cached; load it inside the context, after which a
    temporary folder of this process is removed. Raises `BuildError`."""
    name = f"library-{_key(sources, toolchain)}.so"
    folder: Path | None
    try:
        folder = _private_folder(cache_folder(sources.name))
        if not (folder / name).exists():
            _compile(sources, toolchain, folder / name)
        _check_owned(folder / name)
    except OSError:  # read-only, full, or another user's: compiled for this process alone
        folder = None
    if folder is not None:
        yield folder / name
        return
    with tempfile.TemporaryDirectory(prefix="atom-library-") as own:
        _compile(sources, toolchain, Path(own) / name)
        yield Path(own) / name


def _compile(sources: CSources, toolchain: Toolchain, target: Path) -> None:
    """Compile the sources into place in one step: several processes may do so at the same time."""
    files = [str(path) for path in sorted(sources.folder.glob("*.c"))]
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        _run([toolchain.compiler, *sources.flags, "-c", *files], folder)
        objects = [str(path) for path in sorted(Path(folder).glob("*.o"))]
        link = ["-shared", "-pthread", "-o", "library.so", *objects, "-lm", "-ldl", "-Wl,-z,defs"]
        _run([toolchain.compiler, *link], folder)
        (Path(folder) / "library.so").replace(target)


def _run(command: list[str], folder: str) -> None:
    try:
        subprocess.run(
            command, cwd=folder, check=True, capture_output=True, timeout=_COMPILE_SECONDS
        )
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().splitlines()[-3:]
        raise BuildError(f"{command[0]} failed: {' | '.join(last)}") from error
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} took more than {_COMPILE_SECONDS} s") from error


def _key(sources: CSources, toolchain: Toolchain) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in sources.folder.iterdir() if path.suffix in (".c", ".h")):
        digest.update(path.name.encode() + path.read_bytes())
    file = Path(toolchain.compiler).resolve().stat()
    made_from = (sources.flags, toolchain, _processor(), file.st_size, file.st_mtime_ns)
    digest.update(repr(made_from).encode())
    return digest.hexdigest()[:24]


def _processor() -> str:
    """Return the processor's facts that decide which instructions -march=native may use."""
    about = {platform.machine()}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "flags", "Features", "CPU part")):
            about.add(line)
    return "\n".join(sorted(about))


def _private_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check_owned(folder)
    return folder


def _check_owned(path: Path) -> None:
    """Check that a file cannot be written by others, who could let this process run their code."""
    about = path.stat()
    if about.st_uid != os.geteuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{path} belongs to, or may be written by, somebody else")


def loaded_library(name: str) -> str:
    """Return the path of a library that torch has loaded already, of any version; its name if it
    has not."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rpartition(" ")[2]
        if Path(path).name.startswith(name):
            return path
    return name
