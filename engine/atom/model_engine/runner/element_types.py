"""Element types of the weights and the cache on this device, from the options and the checkpoint.

Raises `ConfigError` for an unknown type name and for a type that the device does not support.
"""

from __future__ import annotations

import torch

from atom.config import Config
from atom.errors import ConfigError
from atom.model_ops.quantised.cached_heads import FP8_DTYPES
from atom.sizing.kv_layout import KV_ELEMENTS, KvElement
from atom.utils.device import Device, check_dtype, native_fp8

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_KV_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def model_dtype(config: Config, device: Device) -> torch.dtype:
    """Choose the model's dtype; auto: float32 on the CPU (exact and as fast as bfloat16 there), the
    checkpoint's on a GPU."""
    name = config.model.dtype
    if name == "auto":
        raw = config.model.hf_config
        checkpoint = str(raw.get("dtype") or raw.get("torch_dtype") or "bfloat16")
        name = checkpoint.removeprefix("torch.") if device.is_gpu else "float32"
    if name not in _DTYPES:
        raise ConfigError(f"unknown dtype {name!r}; dtypes: auto, {', '.join(_DTYPES)}")
    check_dtype(device, _DTYPES[name])
    return _DTYPES[name]


def kv_dtype(config: Config, model_dtype: torch.dtype, device: Device) -> torch.dtype:
    """Choose the KV cache's dtype; auto: the model's own; fp8: the kind that the device
    converts."""
    name = config.cache.kv_cache_dtype
    if name == "auto":
        return model_dtype
    if name == "fp8":
        return native_fp8(device.torch_device) or torch.float8_e4m3fn
    if name not in _KV_DTYPES:
        raise ConfigError(f"unknown kv_cache_dtype {name!r}; use auto, {', '.join(_KV_DTYPES)}")
    return _KV_DTYPES[name]


def kv_element(dtype: torch.dtype) -> KvElement:
    """Return the cache element for a dtype: with scales if it is fp8."""
    return KV_ELEMENTS["fp8"] if dtype in FP8_DTYPES else KvElement(dtype.itemsize)


def name_of(dtype: torch.dtype) -> str:
    """Name a dtype as a config.json does."""
    return str(dtype).removeprefix("torch.")
