"""A plan counts a checkpoint in NVFP4 as what it is converted to, and reports the conversion."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from atom.sizing import ModelFacts
from atom_operator.__main__ import main
from tests.support.operator.builders_operator import TINY_CONFIG, atom_deployment

NVFP4 = {
    "quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"],
}  # fmt: skip


def test_a_plan_tells_of_the_conversion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {**TINY_CONFIG, "quantization_config": NVFP4}
    path = tmp_path / "tiny.yaml"
    document = atom_deployment(
        model={"source": "hf://acme/tiny-nvfp4", "config": config},
        accelerator={"type": "amd", "product": "MI300X"},
    )
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    main(["plan", "-f", str(path)])
    text = capsys.readouterr().out
    assert "modelopt (NVFP4 converted to fp8 with a scale per output, 8 bits)" in text


def test_its_bytes_are_those_of_fp8_with_a_scale_per_output() -> None:
    rows = {"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}
    found, expected = (
        ModelFacts.from_hf_config({**TINY_CONFIG, "quantization_config": section})
        for section in (NVFP4, {**rows, "ignore": ["lm_head"]})
    )
    for ranks in (1, 2):
        assert found.weight_bytes(None, ranks) == expected.weight_bytes(None, ranks)
