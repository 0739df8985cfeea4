"""Tiny checkpoints in each quantised layout, and the same model plain.

Written from the formats' own descriptions, word by word, and without the engine's code: what the
plain copy holds is what the codes stand for.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.models.converted_layouts import Tensors, mxfp6, mxfp8, nvfp4
from tests.support.models.tiny_model import Architecture, make_tiny_checkpoint

_MATRIX = re.compile(
    r"model\.layers\.\d+\.((self_attn|mlp)\..*_proj(_with_mqa)?"
    r"|linear_attn\.(in_proj_(qkvz|qkv|z)|out_proj))\.weight"
)
_STACK = re.compile(r"model\.layers\.\d+\.mlp\.experts\.(gate_up|down)_proj")
_FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Layout:
    """store: a matrix [out, in] → the tensors that stand for it, by the last part of their names,
    and the matrix that they stand for. stack: the same of experts in one tensor."""

    config: dict[str, Any]
    store: Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]
    stack: Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]] | None = None


def _fp8(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    codes = (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes, codes.float() * scale


def fp8_blocks(x: torch.Tensor, name: str = "weight_scale_inv") -> tuple[Tensors, torch.Tensor]:
    rows, columns = x.shape
    scale = torch.zeros(-(-rows // 128), -(-columns // 128))
    codes, values = torch.zeros_like(x, dtype=torch.float8_e4m3fn), torch.zeros_like(x)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            at = slice(i * 128, i * 128 + 128), slice(j * 128, j * 128 + 128)
            scale[i, j] = x[at].abs().max() / 448
            codes[at], values[at] = _fp8(x[at], scale[i, j])
    return {"weight": codes, name: scale}, values


def fp8_tensor(x: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = x.abs().max() / 448
    codes, values = _fp8(x, scale)
    tensors = {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(0.1)}
    return tensors, values


def fp8_rows(x: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = (x.abs().amax(1, keepdim=True) / 448).bfloat16().float()
    codes, values = _fp8(x, scale)
    return {"weight": codes, "weight_scale": scale.bfloat16()}, values


def fp8_flat_rows(x: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = x.abs().amax(1, keepdim=True) / 448
    codes, values = _fp8(x, scale)
    return {"weight": codes, "weight_scale": scale.flatten()}, values


def int8_rows(x: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = x.abs().amax(1, keepdim=True) / 127
    codes = (x / scale).round().clamp(-128, 127).to(torch.int8)
    return {"weight": codes, "weight_scale": scale}, codes.float() * scale


def _int4(
    x: torch.Tensor, group: int, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes 0 to 15 [out, in], scales and zero points [out, groups], and the values."""
    parts = x.unflatten(1, (-1, group))
    if symmetric:
        scale = (parts.abs().amax(2) / 7).half()
        zero = torch.full_like(scale, 8)
    else:
        low, high = parts.amin(2).clamp_max(0), parts.amax(2).clamp_min(0)
        scale = ((high - low) / 15).half()
        zero = (-low / scale.float()).round().clamp(0, 15)
    codes = ((parts / scale[..., None].float()).round() + zero[..., None]).clamp(0, 15)
    values = (codes - zero[..., None]).float() * scale[..., None].float()
    return codes.flatten(1).int(), scale, zero.int(), values.flatten(1)


def _words(codes: torch.Tensor, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Eight neighbours of the last dimension in an int32, the one that order names first lowest."""
    word = torch.zeros((*codes.shape[:-1], codes.shape[-1] // 8), dtype=torch.int64)
    for place, column in enumerate(order):
        word |= codes[..., column::8].long() << (4 * place)
    return torch.where(word >= 2**31, word - 2**32, word).int()


def awq(x: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    codes, scale, zero, values = _int4(x, 32, symmetric=False)
    tensors = {
        "qweight": _words(codes.t(), _AWQ_ORDER),
        "qzeros": _words(zero.t(), _AWQ_ORDER),
        "scales": scale.t(),
    }
    return tensors, values


def gptq(
    x: torch.Tensor, symmetric: bool = False, offset: int = 1, group: int = 32
) -> tuple[Tensors, torch.Tensor]:
    codes, scale, zero, values = _int4(x, group, symmetric)
    tensors = {
        "qweight": _words(codes).t(),
        "qzeros": _words(((zero - offset) % 16).t()),
        "scales": scale.t(),
        "g_idx": torch.arange(x.shape[1], dtype=torch.int32) // group,
    }
    return tensors, values


def gptq_ordered(x: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """desc_act: inputs in groups of another order than their own."""
    order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(x.shape[0]))
    back = order.argsort()
    codes, scale, zero, values = _int4(x[:, order], 32, False)
    tensors = {
        "qweight": _words(codes[:, back]).t(),
        "qzeros": _words(((zero - 1) % 16).t()),
        "scales": scale.t(),
        "g_idx": (torch.arange(x.shape[1], dtype=torch.int32) // 32)[back],
    }
    return tensors, values[:, back]


def packed_ordered(x: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """compressed-tensors' actorder: group."""
    order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(x.shape[0]))
    back = order.argsort()
    codes, scale, _, values = _int4(x[:, order], 32, True)
    tensors = {
        "weight_packed": _words(codes[:, back]),
        "weight_scale": scale,
        "weight_shape": torch.tensor(x.shape),
        "weight_g_idx": (torch.arange(x.shape[1], dtype=torch.int32) // 32)[back],
    }
    return tensors, values[:, back]


def packed(x: torch.Tensor, symmetric: bool = True) -> tuple[Tensors, torch.Tensor]:
    codes, scale, zero, values = _int4(x, 32, symmetric)
    tensors = {
        "weight_packed": _words(codes),
        "weight_scale": scale,
        "weight_shape": torch.tensor(x.shape),
    }
    if not symmetric:
        tensors["weight_zero_point"] = _words(zero.t()).t()
    return tensors, values


def mxfp4(x: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    parts = x.unflatten(1, (-1, 32))
    exponent = parts.abs().amax(2).log2().floor() - 2
    scaled = parts / 2 ** exponent[..., None]
    codes = (scaled[..., None] - _FP4).abs().argmin(-1)
    values = _FP4[codes] * 2 ** exponent[..., None]
    flat = codes.flatten(1).to(torch.uint8)
    tensors = {
        "weight": flat[:, ::2] | (flat[:, 1::2] << 4),
        "weight_scale": (exponent + 127).to(torch.uint8),
    }
    return tensors, values.flatten(1)


def mxfp4_stack(x: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """gpt-oss' experts: a stack [E, in, out], stored by output in blocks of 16 bytes."""
    stored, values = zip(*(mxfp4(one.t().contiguous()) for one in x), strict=True)
    tensors = {
        "blocks": torch.stack([one["weight"].unflatten(1, (-1, 16)) for one in stored]),
        "scales": torch.stack([one["weight_scale"] for one in stored]),
    }
    return tensors, torch.stack(values).transpose(1, 2).contiguous()


def _compressed(layout: str, **weights: Any) -> dict[str, Any]:
    activations = {"num_bits": 8, "dynamic": True} if weights["num_bits"] == 8 else None
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def _quark(**weight: Any) -> dict[str, Any]:
    scheme = {"weight": weight, "input_tensors": {**weight, "is_dynamic": True}}
    return {"quant_method": "quark", "global_quant_config": scheme, "exclude": ["lm_head"]}


_INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
LAYOUTS: dict[str, Layout] = {
    "fp8-blocks": Layout(
        {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
        fp8_blocks,
    ),
    "fp8-tensor": Layout({"quant_method": "fp8", "activation_scheme": "static"}, fp8_tensor),
    "fbgemm": Layout({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, fp8_rows),
    "compressed-fp8-tensor": Layout(
        _compressed("float-quantized", num_bits=8, type="float", strategy="tensor"), fp8_tensor
    ),
    "compressed-fp8-rows": Layout(
        _compressed("float-quantized", num_bits=8, type="float", strategy="channel"), fp8_rows
    ),
    "compressed-fp8-blocks": Layout(
        _compressed(
            "float-quantized",
            num_bits=8,
            type="float",
            strategy="block",
            block_structure=[128, 128],
        ),
        lambda x: fp8_blocks(x, "weight_scale"),
    ),
    "compressed-int8": Layout(
        _compressed("int-quantized", num_bits=8, type="int", strategy="channel"), int8_rows
    ),
    "compressed-int4": Layout(_compressed("pack-quantized", **_INT4, symmetric=True), packed),
    "compressed-int4-zeros": Layout(
        _compressed("pack-quantized", **_INT4, symmetric=False), lambda x: packed(x, False)
    ),
    "awq": Layout({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, awq),
    "gptq": Layout({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}, gptq),
    "gptq-ordered": Layout(
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}, gptq_ordered
    ),
    "compressed-int4-ordered": Layout(
        _compressed("pack-quantized", **_INT4, symmetric=True, actorder="group"), packed_ordered
    ),
    "gptq-symmetric": Layout(
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True},
        lambda x: gptq(x, symmetric=True),
    ),
    "gptq-v2": Layout(
        {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": 32,
            "checkpoint_format": "gptq_v2",
        },
        lambda x: gptq(x, offset=0),
    ),
    "quark-fp8": Layout(_quark(dtype="fp8_e4m3", qscheme="per_tensor"), fp8_tensor),
    "quark-fp8-rows": Layout(_quark(dtype="fp8_e4m3", qscheme="per_channel"), fp8_flat_rows),
    "quark-mxfp4": Layout(_quark(dtype="fp4", qscheme="per_group", group_size=32), mxfp4),
}
# Layouts that are converted as they are loaded; any model may have them.
CONVERTED: dict[str, Layout] = {
    "modelopt-nvfp4": Layout(
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, nvfp4
    ),
    "compressed-nvfp4": Layout(
        _compressed(
            "nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group",
            group_size=16, symmetric=True,
        ),
        lambda x: nvfp4(x, inverse=True),
    ),
    "modelopt-mxfp8": Layout({"quant_method": "modelopt", "quant_algo": "MXFP8"}, mxfp8),
    "compressed-mxfp8": Layout(
        _compressed("mxfp8-quantized", num_bits=8, type="float", strategy="group", group_size=32),
        mxfp8,
    ),
    "compressed-mxfp6": Layout(
        _compressed(
            "mxfp6-pack-quantized", num_bits=6, type="float", strategy="group", group_size=32
        ),
        mxfp6,
    ),
    "mxfp8": Layout(
        {"quant_method": "mxfp8", "weight_block_size": [1, 32], "scale_fmt": "ue8m0"},
        lambda x: mxfp8(x, "weight_scale_inv"),
    ),
}  # fmt: skip
LAYOUTS |= CONVERTED
# The same with inputs as they are.
MXFP4_WEIGHTS = Layout(
    _quark(dtype="fp4", qscheme="per_group", group_size=32) | {"global_quant_config": {"weight": {
        "dtype": "fp4", "qscheme": "per_group", "group_size": 32}}},
    mxfp4,
)  # fmt: skip

# Of one family alone, and so not among those that any model may have.
GPT_OSS_LAYOUT = Layout(
    {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
            "lm_head",
        ],
    },
    mxfp4,
    mxfp4_stack,
)  # fmt: skip


def make_quantised_checkpoint(
    folder: Path,
    layout: Layout,
    architecture: Architecture = "qwen3",
    *,
    leave: str | None = None,
    others: dict[str, Layout | None] | None = None,
    extra: dict[str, Any] | None = None,
    sizes: dict[str, int] | None = None,
    **changes: Any,
) -> tuple[Path, Path]:
    """The quantised checkpoint, and the plain one of the same values. leave: a part of a module's
    name that is not quantised; others: parts of names whose matrices are stored in another layout,
    plain where it is None, the first that is found; extra: of config.json; sizes: of the model, as
    make_tiny_checkpoint names them; changes: of quantization_config."""
    chosen: dict[str, Any] = {"hidden": 128, "head_dim": 32, "intermediate": 320, **(sizes or {})}
    plain = make_tiny_checkpoint(folder / "plain", architecture, extra=extra, **chosen)
    quantised = Path(shutil.copytree(plain, folder / "quantised"))
    stored: Tensors = {}
    values = load_file(plain / "model.safetensors")
    for name, tensor in values.items():
        if _STACK.fullmatch(name) and layout.stack is not None:
            tensors, values[name] = layout.stack(tensor)
            stored |= {f"{name}_{last}": made for last, made in tensors.items()}
            continue
        named = {**({} if leave is None else {leave: None}), **(others or {})}
        own = next((other for part, other in named.items() if part in name), layout)
        if not _MATRIX.fullmatch(name) or own is None:
            stored[name] = tensor
            continue
        tensors, values[name] = own.store(tensor)
        for last, made in tensors.items():
            stored[f"{name.removesuffix('.weight')}.{last}"] = made.contiguous()
    save_file(values, plain / "model.safetensors", metadata={"format": "pt"})
    save_file(stored, quantised / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((quantised / "config.json").read_text())
    config["quantization_config"] = {**layout.config, **changes}
    (quantised / "config.json").write_text(json.dumps(config))
    return quantised, plain
