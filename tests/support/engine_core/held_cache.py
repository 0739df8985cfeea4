"""The bytes of a started engine's KV cache, as they are handed to its layers."""

from __future__ import annotations

from typing import Any

import pytest

from atom.model_ops.attention import CachedAttention


def counted_cache(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Bytes of each allocation that attention layers hold from now on, by its address: layers of a
    block may share one, each a view of its own part."""
    held: dict[int, int] = {}
    bind = CachedAttention.bind

    def counted(layer: Any, tensors: Any, group: int) -> None:
        storages = [tensor.untyped_storage() for tensor in tensors]
        held.update({storage.data_ptr(): storage.nbytes() for storage in storages})
        bind(layer, tensors, group)

    monkeypatch.setattr(CachedAttention, "bind", counted)
    return held
