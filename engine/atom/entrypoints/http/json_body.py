"""Bodies as JSON bytes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

# Encodes msgspec's structs and their field types.
to_json: Callable[[object], bytes] = msgspec.json.Encoder().encode
