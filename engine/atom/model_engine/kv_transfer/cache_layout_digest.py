"""The layout digest: two engines may exchange KV pages if and only if theirs are equal.

It covers everything that decides the bytes of a page besides the tokens: the model and its weights,
the types, the block size, the groups of layers with their masks, and each layer's tensors in the
order in which its backend stores them. The number of blocks and the device are not part of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from atom.config import Config
from atom.model_engine.front.weights_update import version_of
from atom.model_engine.transfer_legs import PROTOCOL
from atom.model_engine.wire.engine_protocol import EngineReport

_DIGEST_BYTES = 16
_AITER = "aiter"  # whose attention has an order of its own within a block


def layout_facts(config: Config, report: EngineReport, tensors: Sequence[str]) -> dict[str, str]:
    """Return the facts by name, so that a mismatch can be named. tensors: the parts of
    a page of each group, in their order."""
    masks = [f"{mask.kind}:{mask.size}" for mask in report.cache_masks]
    attention = {name for op, name in report.backends.items() if "attention" in op}
    return {
        "protocol": str(PROTOCOL),
        "architecture": config.model.architecture,
        "weights": version_of(config.model),
        "dtype": report.dtype,
        "kv_cache_dtype": report.kv_cache_dtype,
        "quantization": str(config.model.facts.quantization),
        "block_size": str(report.block_size),
        "groups": ",".join(masks),
        "tensor_parallel_size": str(config.parallel.tensor_parallel_size),
        "tensors": hashlib.blake2b("|".join(tensors).encode(), digest_size=8).hexdigest(),
        "block_order": _AITER if _AITER in attention else "token",
        "rope": str(config.model.hf_config.get("rope_scaling")),
        "reproducible": str(config.execution.reproducible),
    }


def layout_digest(facts: Mapping[str, str]) -> str:
    """Return the digest of the facts, 32 hexadecimal digits."""
    canonical = msgspec.json.encode(dict(sorted(facts.items())))
    return hashlib.blake2b(canonical, digest_size=_DIGEST_BYTES).hexdigest()
