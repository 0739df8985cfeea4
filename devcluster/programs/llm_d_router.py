"""llm-d's endpoint picker, for tests that read the engine's events with it; no cluster needs it.

It is built without llm-d's own tokenizers behind Unix sockets, which it has given up for /render.
"""

from __future__ import annotations

from devcluster.programs.binaries import Group

_MODULE = "github.com/llm-d/llm-d-router"
PICKER = "llm-d-endpoint-picker"
GROUP = Group(
    "llm-d-router",
    _MODULE,
    {PICKER: f"{_MODULE}/cmd/epp"},
    note="about 3 minutes on 2 cores the first time",
)
