"""The tools that an answer may call, as parsers need them: names, and schemas of the arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# By name: the JSON schema of a tool's arguments, None if it takes none.
Tools = Mapping[str, Mapping[str, Any] | None]
