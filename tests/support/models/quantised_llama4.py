"""Tiny quantised checkpoints of Llama 4, in the layouts that published ones have.

llm-compressor, AutoAWQ and GPTQ make each expert's three matrices modules before they quantise
them (`feed_forward.experts.3.gate_proj.weight` with what stands beside it, outputs first), while
FBGEMM's keep the stacks of all experts, inputs first, with a tensor of scales beside each. Routers
and what reads images stay plain.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.models.multimodal_checkpoint import make_multimodal_checkpoint
from tests.support.models.quantised_checkpoint import LAYOUTS, Layout, Tensors

# Halves of every width are whole groups of 32 inputs.
SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "intermediate_size_mlp": 192,
    "num_local_experts": 4,
}  # fmt: skip
_STACK = re.compile(r"(language_model\.model\.layers\.\d+\.feed_forward\.experts)\.(\w+)_proj")
_MATRIX = re.compile(
    r"language_model\.model\.layers\.\d+\.(self_attn|feed_forward(\.shared_expert)?)\.\w_?\w*_proj"
)
_OTHER_PARTS = ("vision_model.", "multi_modal_projector.", "language_model.lm_head")


@dataclass(frozen=True)
class Llama4Layout:
    """of: what one matrix is stored as; stacked: experts stay in one tensor; attention: is
    quantised too; excluded: the key of quantization_config that names what is left alone."""

    of: Layout
    stacked: bool = False
    attention: bool = False
    excluded: str = "ignore"


LLAMA4_LAYOUTS = {
    "fp8-dynamic": Llama4Layout(LAYOUTS["compressed-fp8-rows"]),
    "w4a16": Llama4Layout(LAYOUTS["compressed-int4"]),
    "w4a16-zeros": Llama4Layout(LAYOUTS["compressed-int4-zeros"], attention=True),
    "w8a8": Llama4Layout(LAYOUTS["compressed-int8"], attention=True),
    "awq": Llama4Layout(LAYOUTS["awq"], excluded="modules_to_not_convert"),
    "gptq": Llama4Layout(LAYOUTS["gptq"], attention=True, excluded="modules_to_not_convert"),
    "fbgemm": Llama4Layout(LAYOUTS["fbgemm"], stacked=True, excluded="modules_to_not_convert"),
    "fbgemm-attention": Llama4Layout(
        LAYOUTS["fbgemm"], stacked=True, attention=True, excluded="modules_to_not_convert"
    ),
}


def make_quantised_llama4(folder: Path, name: str, **text: Any) -> tuple[Path, Path]:
    """The quantised checkpoint, and the plain one of the same values. text: fields of the text
    part."""
    layout, plain = LLAMA4_LAYOUTS[name], folder / "plain"
    plain.mkdir(parents=True)
    make_multimodal_checkpoint(plain, "llama4", **{**SIZES, **text})
    quantised = Path(shutil.copytree(plain, folder / "quantised"))
    values, stored, left = load_file(plain / "model.safetensors"), {}, list[str]()
    for tensor_name, tensor in values.items():
        module, last = tensor_name.removesuffix(".weight"), tensor_name.rpartition(".")[2]
        stack = _STACK.fullmatch(tensor_name)
        if stack is not None:
            store = _stacked if layout.stacked else _parted
            tensors, values[tensor_name] = store(stack[1], stack[2], tensor, layout.of)
            stored |= tensors
        elif _MATRIX.fullmatch(module) and (layout.attention or "self_attn" not in module):
            tensors, values[tensor_name] = layout.of.store(tensor)
            stored |= {f"{module}.{part}": made.contiguous() for part, made in tensors.items()}
        else:
            stored[tensor_name] = tensor
            if last == "weight" and tensor.dim() > 1 and "embed" not in module:
                left.append(module)
    save_file(values, plain / "model.safetensors", metadata={"format": "pt"})
    save_file(stored, quantised / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((quantised / "config.json").read_text())
    config["quantization_config"] = {**layout.of.config, layout.excluded: left}
    (quantised / "config.json").write_text(json.dumps(config))
    return quantised, plain


def _parted(
    experts: str, kind: str, stack: torch.Tensor, layout: Layout
) -> tuple[Tensors, torch.Tensor]:
    """A stack [E, in, out] as modules of each expert, and what they stand for, as a stack."""
    stored: Tensors = {}
    parts = ("gate", "up") if kind == "gate_up" else (kind,)
    values = torch.empty_like(stack)
    for expert, matrices in enumerate(stack):
        first = 0
        for part, matrix in zip(parts, matrices.chunk(len(parts), dim=-1), strict=True):
            tensors, own = layout.store(matrix.t().contiguous())
            end = first + matrix.shape[1]
            values[expert, :, first:end] = own.t()
            first = end
            stored |= {
                f"{experts}.{expert}.{part}_proj.{last}": made.contiguous()
                for last, made in tensors.items()
            }
    return stored, values


def _stacked(
    experts: str, kind: str, stack: torch.Tensor, layout: Layout
) -> tuple[Tensors, torch.Tensor]:
    """A stack [E, in, out] in fp8, scales of outputs [E, 1, 2·I] of gates and ups and [E, H, 1] of
    downs beside it."""
    made = [layout.store(matrix.t().contiguous()) for matrix in stack]
    codes = torch.stack([tensors["weight"].view(torch.uint8).t() for tensors, _ in made])
    scales = torch.stack([tensors["weight_scale"].float() for tensors, _ in made])
    name = f"{experts}.{kind}_proj"
    stored = {
        name: codes.contiguous().view(torch.float8_e4m3fn),
        f"{name}_scale": scales.transpose(1, 2).contiguous() if kind == "gate_up" else scales,
    }
    return stored, torch.stack([values.t() for _, values in made]).contiguous()
