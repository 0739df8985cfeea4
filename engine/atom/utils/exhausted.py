"""Detect from an exception which resource of the operating system is exhausted.

Open files, memory, threads and disks run out anywhere, as errors of any library; the remedy is the
same everywhere. Called when a process of the engine ends because of an exception.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator

from atom.errors import AtomError

_NO_MEMORY_WORDS = (
    "failed to map segment",  # the loader, of a library
    "cannot allocate memory",
    "can't allocate memory",  # torch
    "defaultcpuallocator",
    "std::bad_alloc",
)
_NO_THREADS_WORDS = ("can't start new thread",)
_MOST_LINKS = 10


class ResourceError(AtomError):
    """The operating system refuses a resource that a process of the engine needs."""


def exhausted(error: BaseException) -> ResourceError | None:
    """Return the error for people if this exception, or one of its causes, shows an exhausted
    resource."""
    for each in _chain(error):
        told = _told(each)
        if told is not None:
            return ResourceError(f"{told} ({type(each).__name__}: {each})")
    return None


def too_few_files(limit: int, least: int) -> ResourceError:
    return ResourceError(
        f"this process may have {limit} files open and needs {least} at least, and one more for "
        f"every connection; {_MORE_FILES}"
    )


_MORE_FILES = (
    "raise the limit: ulimit -n 65536 in the shell, LimitNOFILE= of a systemd unit, --ulimit "
    "nofile= of a container"
)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_MOST_LINKS):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _told(error: BaseException) -> str | None:
    number = getattr(error, "errno", None)
    words = str(error).lower()
    if number == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"a process of this server has all {limit} files open that it may; {_MORE_FILES}"
    if number == errno.ENFILE:
        return "the machine has no more open files; end other programs, or raise fs.file-max"
    if number == errno.ENOSPC:
        return "a disk is full; make room, or choose other folders by TMPDIR and ATOM_CACHE_DIR"
    if isinstance(error, MemoryError) or number == errno.ENOMEM or _any(_NO_MEMORY_WORDS, words):
        return f"there is no more memory for a process of this server; {_more_memory()}"
    if isinstance(error, BlockingIOError) or _any(_NO_THREADS_WORDS, words):
        return (
            "no more threads or processes may be started; raise ulimit -u, or the pids limit of "
            "the container"
        )
    return None


def _any(phrases: tuple[str, ...], words: str) -> bool:
    return any(phrase in words for phrase in phrases)


def _more_memory() -> str:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        return (
            f"its address space is limited to {limit / 2**30:.1f} GiB, of which libraries alone "
            "take several: ulimit -v unlimited, and limit the container's memory instead"
        )
    return "give the container or the machine more, or ask for less (--num-kv-blocks)"
