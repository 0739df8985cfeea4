"""Matrices in NVFP4, MXFP8 and MXFP6 become fp8 with a scale per output: the nearest such numbers,
within the bound that the module states, in as much memory as a plan says."""

from __future__ import annotations

import pytest
import torch

from atom.model_ops.backends import resolve_ops
from atom.model_ops.linear import Build, Linear
from atom.model_ops.parallel import Ranks
from atom.model_ops.quantised import converted_layouts
from atom.model_ops.quantised.codes import pack_pairs
from atom.model_ops.quantised.convert import group_scales, numbers, to_fp8_rows
from atom.model_ops.quantised.dequantise import plain
from atom.sizing import ModelFacts
from atom.sizing.quantization import Source
from tests.engine.ops.inputs import FLOAT32
from tests.engine.unit.model_ops.test_quantised_ranks import CONFIG, fill, matrices_of
from tests.support.models.converted_layouts import as_fp8_rows, mxfp6, mxfp8, nvfp4
from tests.support.models.quantised_checkpoint import CONVERTED, LAYOUTS, Layout

RELATIVE_ERROR = 1 / 21
ABSOLUTE_ERROR = 2.0**-10  # of an output's scale
_FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]).double()
_SCALES = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn)  # all that NVFP4 has


def test_every_number_of_nvfp4_is_within_the_bound() -> None:
    """Every code with every scale, in an output of its own, beside a group of the largest."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(len(_SCALES), 2)
    scale = torch.stack((_SCALES, torch.full_like(_SCALES.float(), 448).to(_SCALES.dtype)), 1)
    for beside in (scale, scale[:, :1].repeat_interleave(2, 1)):
        values = numbers(Source.NVFP4, pack_pairs(codes), group_scales(Source.NVFP4, beside))
        exact = _FP4[codes.long()] * beside.double().repeat_interleave(16, 1)
        assert torch.equal(values.double(), exact)
        data, row = to_fp8_rows(values, torch.tensor(1.0))
        found = data.double() * row.double()
        assert torch.equal(found, as_fp8_rows(exact))
        error = (found - exact).abs()
        assert (error <= torch.maximum(exact.abs() * RELATIVE_ERROR, ABSOLUTE_ERROR * row)).all()
        normal = exact.abs() >= 2.0**-6 * row
        power = torch.tensor([0, 1, 2, 4, 6]).repeat(2)  # places of 0, 0.5, 1, 2, 4
        power[5:] += 8
        whole = torch.isin(codes, power.to(torch.uint8)) & normal
        assert torch.equal(found[whole], exact[whole])
        assert error.max() > 0


@pytest.mark.parametrize("source", [Source.MXFP8, Source.MXFP6])
def test_numbers_of_powers_of_two_are_exact_but_for_the_smallest(source: Source) -> None:
    draw = torch.randn(32, 256, generator=torch.Generator().manual_seed(2))
    draw *= torch.randint(-6, 7, (32, 8)).float().exp2().repeat_interleave(32, 1)
    tensors, exact = mxfp6(draw) if source is Source.MXFP6 else mxfp8(draw, exact=False)
    stored = tensors.get("weight", tensors.get("weight_packed"))
    assert stored is not None
    values = numbers(source, stored, group_scales(source, tensors["weight_scale"]))
    assert torch.equal(values, exact)
    data, row = to_fp8_rows(values, torch.tensor(1.0))
    found = data.double() * row
    assert ((found - exact).abs() <= ABSOLUTE_ERROR * row).all()
    normal = exact.abs() >= 2.0**-6 * row
    assert torch.equal(found[normal], exact[normal].double())


def test_outputs_of_zeros_stay_zeros() -> None:
    data, scale = to_fp8_rows(torch.zeros(2, 32), torch.tensor(0.0))
    assert not data.float().any()
    assert not scale.any()


def converted(layout: Layout, ranks: Ranks, exact: torch.Tensor) -> torch.Tensor:
    """The numbers that a rank holds of a down projection that was drawn so."""
    matrix = matrices_of(layout)["down_proj"]
    tensors = {f"{matrix.name}.{last}": each for last, each in layout.store(exact)[0].items()}
    linear = Linear((matrix,), Build(resolve_ops("cpu", FLOAT32, "torch_ref").ops, ranks))
    for placement in linear.placements(matrix.name):
        if placement.companions:
            fill(placement, tensors)
    return plain(linear.w, torch.float32)


@pytest.mark.parametrize(("inverse", "rows"), [(False, 1 << 20), (True, 7)])
def test_a_published_matrix_is_converted_within_two_percent_of_its_norm(
    monkeypatch: pytest.MonkeyPatch, inverse: bool, rows: int
) -> None:
    """With scales as they are published, converted some rows at a time."""
    monkeypatch.setattr(converted_layouts, "_AT_ONCE", rows * 1024)
    name = "compressed-nvfp4" if inverse else "modelopt-nvfp4"
    layout = Layout(LAYOUTS[name].config, lambda x: nvfp4(x, inverse=inverse, exact=False))
    drawn = torch.randn(256, 1024, generator=torch.Generator().manual_seed(5))
    values = layout.store(drawn)[1].double()
    whole = converted(layout, Ranks(), drawn).double()
    error = (whole - values).norm() / values.norm()
    assert 0.01 < error < 0.025
    least = values.abs().amax(1, keepdim=True) / 224 * ABSOLUTE_ERROR
    bound = torch.maximum(values.abs() * (RELATIVE_ERROR + 1e-6), least)
    assert ((whole - values).abs() <= bound).all()
    halves = [converted(layout, Ranks(2, rank), drawn) for rank in (0, 1)]
    assert torch.equal(torch.cat(halves, 1).double(), whole), "no number depends on the ranks"


@pytest.mark.parametrize("name", CONVERTED)
def test_a_plan_counts_a_byte_an_element_and_four_an_output(name: str) -> None:
    said = {**CONFIG, "quantization_config": CONVERTED[name].config}
    plain_bytes = ModelFacts.from_hf_config(CONFIG).weight_bytes()
    matrices = matrices_of(CONVERTED[name]).values()
    elements = sum(matrix.rows * matrix.columns for matrix in matrices)
    outputs = sum(matrix.rows for matrix in matrices)
    found = ModelFacts.from_hf_config(said).weight_bytes()
    assert found == plain_bytes - 4 * elements + elements + 4 * outputs
