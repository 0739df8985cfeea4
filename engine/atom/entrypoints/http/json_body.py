"""Bodies as JSON bytes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

# Takes msgspec's structs and what they are made of.
to_json: Callable[[object], bytes] = msgspec.json.Encoder().encode
