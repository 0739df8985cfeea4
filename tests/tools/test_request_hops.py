"""A chat request gains no storeys: the functions that only pass it on stay few."""

import re
import subprocess
import sys
from pathlib import Path

from tools.request_hops import MOST_HOPS

ROOT = Path(__file__).resolve().parents[2]


def test_a_chat_request_gains_no_storeys() -> None:
    """What only passes a request on adds to what a reader of its path opens."""
    command = [sys.executable, "-m", "tools.request_hops"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    told = re.search(r"hops of a chat request: (\d+) ", done.stdout)
    assert told is not None, done.stdout + done.stderr
    assert int(told[1]) <= MOST_HOPS
