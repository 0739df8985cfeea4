"""The layout digest: two engines may exchange KV pages if and only if theirs are equal.

It covers everything that decides the bytes of a page besides the tokens: the model and its weights,
the types, the block size, the groups of layers with their masks, and the shapes of each layer's
tensors with the heads of all ranks. The numbers of ranks and of blocks and the device are not part
of it, unless reproducible engines would sum up in orders that differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from atom.config import Config
from atom.model_engine.page_access import stores_heads_first
from atom.model_engine.transfer_legs import PROTOCOL
from atom.model_engine.wire.engine_protocol import EngineReport
from atom.sizing.reproducibility import order_of_sums

_DIGEST_BYTES = 16


def layout_facts(
    config: Config, report: EngineReport, tensors: Sequence[str], weights: str
) -> dict[str, str]:
    """Return the facts by name, so that a mismatch can be named. tensors: the layers and the parts
    of a page of each group; weights: their version."""
    order, execution = "any", config.execution
    if execution.reproducible:
        gpu = "" if report.on_cpu else report.device
        order = order_of_sums(config.model.facts, config.parallel.tensor_parallel_size, gpu)
    masks = [f"{mask.kind}:{mask.size}" for mask in report.cache_masks]
    return {
        "protocol": str(PROTOCOL),
        "architecture": config.model.architecture,
        "weights": weights,
        "dtype": report.dtype,
        "kv_cache_dtype": report.kv_cache_dtype,
        "quantization": str(config.model.facts.quantization),
        "block_size": str(report.block_size),
        "groups": ",".join(masks),
        "tensors": hashlib.blake2b("|".join(tensors).encode(), digest_size=8).hexdigest(),
        "block_order": "heads" if stores_heads_first(report.backends) else "tokens",
        "rope": str(config.model.hf_config.get("rope_scaling")),
        "reproducible": str(execution.reproducible),
        "order_of_sums": order,
    }


def layout_digest(facts: Mapping[str, str]) -> str:
    """Return the digest of the facts, 32 hexadecimal digits."""
    canonical = msgspec.json.encode(dict(sorted(facts.items())))
    return hashlib.blake2b(canonical, digest_size=_DIGEST_BYTES).hexdigest()
