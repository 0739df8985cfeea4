"""Weights that are no numbers are refused by file and tensor, in every type that weights have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from atom.errors import ModelError
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.quantised_checkpoint import LAYOUTS, make_quantised_checkpoint
from tests.support.models.tiny_model import make_tiny_checkpoint

_NORM = "model.layers.0.input_layernorm.weight"
_MATRIX = "model.layers.1.mlp.down_proj.weight"


def spoil(folder: Path, name: str) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors[name] = torch.full_like(tensors[name].float(), torch.nan).to(tensors[name].dtype)
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [_NORM, _MATRIX, "model.embed_tokens.weight"])
def test_a_tensor_of_nan_is_refused_by_its_name(
    tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    folder = make_tiny_checkpoint(tmp_path, dtype=dtype)
    spoil(folder, name)
    with pytest.raises(ModelError, match=rf"model\.safetensors: {name} holds no numbers"):
        CoreDriver(str(folder), max_num_seqs=4)


@pytest.mark.parametrize("name", [_MATRIX, f"{_MATRIX}_scale_inv"])
def test_so_are_codes_and_scales(tmp_path: Path, name: str) -> None:
    quantised, _ = make_quantised_checkpoint(tmp_path, LAYOUTS["fp8-blocks"])
    spoil(quantised, name)
    with pytest.raises(ModelError, match=rf"{name} holds no numbers"):
        CoreDriver(str(quantised), max_num_seqs=4)


def test_one_value_that_is_no_number_is_served(tmp_path: Path) -> None:
    """A row of the vocabulary that no text uses may hold anything."""
    folder = make_tiny_checkpoint(tmp_path)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.embed_tokens.weight"][-1, -1] = torch.nan
    save_file(tensors, file, metadata={"format": "pt"})
    assert CoreDriver(str(folder), max_num_seqs=4).report.num_blocks > 0
