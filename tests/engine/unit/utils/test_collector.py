"""The collector passes over what is made while it rests, and works again afterwards."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own: what is frozen here would be kept from the collector in every later test.
_SCRIPT = """
import gc
from atom.utils.collector import collector_at_rest

def is_walked_over(kept):
    return any(found is kept for found in gc.get_objects())

with collector_at_rest():
    assert not gc.isenabled()
    made = [[]]
assert gc.isenabled()
assert not is_walked_over(made)
later = [[]]
assert is_walked_over(later)
try:
    with collector_at_rest():
        raise ImportError("no such module")
except ImportError:
    assert gc.isenabled(), "after a failed import too"
print("as it should be")
"""


def test_what_is_made_meanwhile_is_not_walked_over_later() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.stdout == "as it should be\n", done.stderr
