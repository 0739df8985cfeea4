"""Select a kernel's configuration on this card: the measured one if there is one, else a safe
default.

Tables come from two places; the later one takes precedence: `tuned/<device>.json` of the package
atom_nvidia, for cards that were measured, and the cache folder, to which `tune` writes its
measurements. An image may leave that package out, and it is never imported here. Serving
measures nothing: attention of a shape without a table entry uses default tiles, products use the
tiles of their family (gemm/tile_families.py). The cache file's name has the device, the Triton
version and a hash of the kernels' sources, so a stale table is never read.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
import triton

from atom.utils.cache_folder import cache_folder

_HERE = Path(__file__).parent.parent
_MEASUREMENTS = "atom_nvidia"
_KERNEL_FILES = (
    "attention/paged_tiles.py",
    "attention/decode.py",
    "attention/decode_append.py",
    "attention/prefill.py",
    "attention/split_kv.py",
    "gemm/skinny_linear.py",
    "gemm/split_k_linear.py",
    "xcd_order.py",
)
# Tokens up to which a product may be one of ours; above, the vendor's library always wins.
TOKEN_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

# Most rows of a batch of decodes by its name; attention has a tile for each. Few rows are split. Of
# more, what counts is how many programs a multiprocessor holds at once: small tiles are many, and
# long rows come to their end together with the others; a tile that leaves the last programs alone
# costs a tenth.
DECODE_BATCHES = {"few": 47, "some": 128, "many": 192}


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """block_n: tokens per tile; programs_per_unit: how many programs per multiprocessor splitting
    aims at; max_splits: bounds the reduction."""

    block_n: int
    num_warps: int
    num_stages: int
    programs_per_unit: int = 16
    max_splits: int = 64


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """A configuration of prefill attention. block_m: query rows (tokens times heads of a group) per
    tile; block_n: keys per tile; max_registers: per thread, if fewer let more programs share a
    multiprocessor."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    max_registers: int | None = None


@dataclass(frozen=True, slots=True)
class SkinnyConfig:
    """A choice of one of the two kernels in gemm/skinny_linear.py, and its tile."""

    kernel: Literal["gemv", "dot"]
    block_n: int
    block_k: int
    split_k: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class SplitKConfig:
    """A tile of gemm/split_k_linear.py; split_k: slices of the inner dimension; weights_first:
    which side of the tensor core's tile the weights are; block_t: most tokens of a tile."""

    block_n: int
    block_k: int
    split_k: int
    weights_first: bool
    num_warps: int
    num_stages: int
    block_t: int = 128


LinearConfig = SkinnyConfig | SplitKConfig


@dataclass(frozen=True, slots=True)
class ReadingRates:
    """The rates at which a card reads a matrix. bytes_per_second: of all programs together;
    latency_seconds: from a program's request to its data; launch_seconds: of a product, besides
    reading; library_share: the share of bytes_per_second that the library's products reach."""

    bytes_per_second: float
    latency_seconds: float
    launch_seconds: float
    library_share: float


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables of configurations. linear, addend, gated: `linear_key` → configuration of a product,
    of one that a norm adds to the residual, and of one with its activation; None if the library is
    faster. decode, prefill: `decode_key` and `attention_key` → configuration. rates: the basis of
    predicted_config for shapes that were not measured; None if only measured shapes have a
    configuration."""

    linear: dict[str, LinearConfig | None]
    addend: dict[str, SplitKConfig | None]
    gated: dict[str, SplitKConfig | None]
    decode: dict[str, DecodeConfig]
    prefill: dict[str, PrefillConfig]
    rates: ReadingRates | None = None


def linear_key(dtype: torch.dtype, out_features: int, in_features: int, tokens: int) -> str:
    """Return the key of a product in the tables; `tokens` is rounded up to its bucket."""
    name = str(dtype).removeprefix("torch.")
    return f"{name}:{out_features}x{in_features}:{token_bucket(tokens)}"


def read_linear_key(key: str) -> tuple[int, int, int]:
    """Return a key's outputs, inputs and bucket of tokens."""
    _, sizes, bucket = key.split(":")
    outputs, inner = sizes.split("x")
    return int(outputs), int(inner), int(bucket)


def token_bucket(tokens: int) -> int:
    """Return the bucket that holds so many tokens."""
    return next(size for size in TOKEN_BUCKETS if size >= tokens)


def attention_key(head_dim: int, element_bytes: int) -> str:
    return f"{head_dim}x{element_bytes}"


def decode_key(head_dim: int, element_bytes: int, rows: int) -> str:
    batch = next((name for name, most in DECODE_BATCHES.items() if rows <= most), "most")
    return f"{attention_key(head_dim, element_bytes)}:{batch}"


@cache
def decode_config(
    device: torch.device, head_dim: int, element_bytes: int, rows: int
) -> DecodeConfig:
    known = tables(device).decode.get(decode_key(head_dim, element_bytes, rows))
    # 16 KiB of keys a tile, twice or three times in flight, fit every card's shared memory.
    return known or DecodeConfig(
        block_n=_tile(16 * 1024, head_dim * element_bytes, 16, 64), num_warps=4, num_stages=2
    )


@cache
def prefill_config(device: torch.device, head_dim: int, element_bytes: int) -> PrefillConfig:
    known = tables(device).prefill.get(attention_key(head_dim, element_bytes))
    tile = _tile(16 * 1024, head_dim * element_bytes, 16, 64)
    return known or PrefillConfig(
        block_m=128 if element_bytes == 2 and head_dim <= 128 else tile,
        block_n=tile,
        num_warps=8 if element_bytes == 2 and head_dim <= 128 else 4,
        num_stages=2,
    )


@cache
def tables(device: torch.device) -> Tables:
    if device.type == "cpu":  # the interpreter
        return Tables({}, {}, {}, {}, {})
    return read_tables(torch.cuda.get_device_name(device))


def read_tables(device_name: str) -> Tables:
    """Read a card's shipped tables, overridden by the measurements of this machine."""
    merged = Tables({}, {}, {}, {}, {})
    for path in (shipped_path(device_name), cached_path(device_name)):
        if path is not None and path.exists():
            found = parse(json.loads(path.read_text()))
            merged.linear.update(found.linear)
            merged.addend.update(found.addend)
            merged.gated.update(found.gated)
            merged.decode.update(found.decode)
            merged.prefill.update(found.prefill)
            merged = replace(merged, rates=found.rates or merged.rates)
    return merged


def parse(raw: dict[str, Any]) -> Tables:
    return Tables(
        linear={key: _linear(value) for key, value in raw.get("linear", {}).items()},
        addend=_splits(raw.get("addend", {})),
        gated=_splits(raw.get("gated", {})),
        decode={key: DecodeConfig(**value) for key, value in raw.get("decode", {}).items()},
        prefill={key: PrefillConfig(**value) for key, value in raw.get("prefill", {}).items()},
        rates=ReadingRates(**raw["rates"]) if "rates" in raw else None,
    )


def _linear(raw: dict[str, Any] | None) -> LinearConfig | None:
    if raw is None:
        return None
    return SkinnyConfig(**raw) if "kernel" in raw else SplitKConfig(**raw)


def _splits(raw: dict[str, Any]) -> dict[str, SplitKConfig | None]:
    return {key: None if value is None else SplitKConfig(**value) for key, value in raw.items()}


def has_measurements() -> bool:
    """Return whether the package of measured tables, and of `tune`, is installed."""
    return find_spec(_MEASUREMENTS) is not None


def shipped_path(device_name: str) -> Path | None:
    """Return the path of a card's shipped table; None if the package of tables is not installed."""
    found = find_spec(_MEASUREMENTS)
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "tuned" / f"{_slug(device_name)}.json"


def cached_path(device_name: str) -> Path:
    name = f"{_slug(device_name)}-triton{triton.__version__}-{source_hash()}.json"
    return cache_folder("triton_tuned") / name


@cache
def source_hash() -> str:
    digest = hashlib.sha256()
    for name in _KERNEL_FILES:
        digest.update((_HERE / name).read_bytes())
    return digest.hexdigest()[:12]


def _slug(device_name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in device_name.lower())


def _tile(budget_bytes: int, token_bytes: int, least: int, most: int) -> int:
    return max(least, min(most, budget_bytes // token_bytes))
