"""fp8 as two vendors have it, and which backend takes which format."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch

from atom.model_ops.backends import load_backend, resolve_ops
from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.op_case import OpCase
from atom.model_ops.quantised.codes import to_fnuz
from atom.model_ops.values import WeightFormat
from tests.engine.ops.inputs import FLOAT32


def test_every_number_of_e4m3_is_the_same_in_fnuz() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    numbers = codes.float()
    moved, scale = to_fnuz(codes, torch.ones(1))
    assert moved.dtype is torch.float8_e4m3fnuz
    assert scale.item() == 2.0
    found = moved.float() * scale
    real = ~numbers.isnan()
    assert torch.equal(found[real], numbers[real])
    assert found[~real].isnan().all()
    assert int((~real).sum()) == 2
    # By hand: 448, the largest, has the same bits as fnuz' 224; -0 would be NaN.
    assert moved[0x7E].float().item() == 224.0
    assert moved[0x80].view(torch.uint8).item() == 0


def test_a_backend_without_a_format_says_so_once_and_leaves_it_to_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    able = load_backend("torch_cpu")

    def plain_only(op: str, case: OpCase) -> tuple[str, ...]:
        others = [kind for kind in case.formats if kind is not WeightFormat.PLAIN]
        return ("multiplies plain matrices only",) if op == "prepare_linear" and others else ()

    def fake(name: str) -> Backend:
        if name == "torch_cpu":
            return replace(able, reasons_against=plain_only)
        return load_backend(name)

    monkeypatch.setattr("atom.model_ops.backends.load_backend", fake)
    case = replace(FLOAT32, formats=(WeightFormat.PLAIN, WeightFormat.MXFP4))
    with caplog.at_level(logging.INFO):
        resolved = resolve_ops("cpu", case, "torch_cpu")
    assert resolved.chosen["prepare_linear"] == "torch_ref"
    assert resolved.chosen["norm"] == "torch_cpu"
    assert not resolved.expands, "the reference keeps the format"
    assert caplog.text.count("multiplies plain matrices only") == 1
    assert resolve_ops("cpu", FLOAT32, "torch_cpu").expands
