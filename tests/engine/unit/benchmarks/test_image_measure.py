"""The benchmark of prompts with pictures: a tiny shape on the CPU, and the products it counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atom.sizing.model_facts import ModelFacts
from benchmarks.engines.images import main
from benchmarks.workloads.seeing import SEEING, encoder_flops, square_grid


def test_a_tiny_shape_is_measured_whole(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "--shape tiny --requests 3 --side 96 --answer 6 --device cpu --compare"
    assert main(asked.split()) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["images"], found["image_tokens"]) == (3, 9)
    assert found["second_turn_images_encoded"] == 0
    assert (found["equal_answers"], found["equal_tokens"]) == (3, 1.0)


@pytest.mark.parametrize("shape", sorted(SEEING))
def test_products_are_those_of_the_matrices_of_all_layers(shape: str, tmp_path: Path) -> None:
    """Beside the patches' scores: two operations for each patch and parameter, but for the norms,
    biases, positions and projections."""
    facts = ModelFacts.from_hf_config(SEEING[shape]).vision
    assert facts is not None
    grid = square_grid(facts, 1024)
    patches = grid[1] * grid[2]
    scores = 4 * patches**2 * facts.hidden_size * facts.num_layers
    products = (encoder_flops(facts, grid) - scores) / (2 * patches)
    assert products < facts.parameters
    layers = facts.num_layers * facts.hidden_size * (4 * facts.hidden_size)
    assert layers < products
