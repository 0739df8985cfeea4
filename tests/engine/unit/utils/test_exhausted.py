"""What ran out is told with its place and remedy, whichever library's error it became."""

from __future__ import annotations

import errno

import pytest
import zmq

from atom.utils.exhausted import exhausted


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n 65536"),
        (zmq.ZMQError(errno.EMFILE), "ulimit -n 65536"),
        (OSError(errno.ENFILE, "Too many open files in system"), r"fs\.file-max"),
        (MemoryError(), "no more memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "no more memory"),
        (ImportError("libx.so: failed to map segment from shared object"), "no more memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "no more memory"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "ulimit -u"),
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/x"), "TMPDIR"),
    ],
    ids=str,
)
def test_what_ran_out_is_told_with_its_remedy(error: Exception, told: str) -> None:
    outer = ValueError("something else")
    outer.__cause__ = RuntimeError("on the way")
    outer.__cause__.__context__ = error
    for each in (error, outer):
        found = exhausted(each)
        assert found is not None
        assert found.args[0].count("; ") >= 1, "what, and what to do"
        with pytest.raises(type(found), match=told):
            raise found
        assert type(error).__name__ in str(found)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        FileNotFoundError(errno.ENOENT, "No such file"),
        zmq.Again(errno.EAGAIN),
        KeyError("memory"),
    ],
    ids=repr,
)
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    assert exhausted(error) is None


def test_a_ring_of_errors_has_an_end() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert exhausted(one) is None
