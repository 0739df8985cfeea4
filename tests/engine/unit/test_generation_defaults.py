"""What a checkpoint's generation_config.json says of sampling, and what of it can be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atom.config import GenerationDefaults
from tests.support.engine_core.front_half import build_test_config, write_model_folder


def defaults_of(folder: Path, **generation: Any) -> GenerationDefaults:
    return build_test_config(write_model_folder(folder, **generation)).model.generation


def test_every_sampling_field_is_a_default(tmp_path: Path) -> None:
    fields = {
        "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1, "repetition_penalty": 1.05
    }  # fmt: skip
    assert defaults_of(tmp_path, **fields) == GenerationDefaults(**fields)


def test_what_it_says_nothing_of_is_left_to_the_api(tmp_path: Path) -> None:
    assert defaults_of(tmp_path, top_k=None) == GenerationDefaults()


def test_a_greedy_model_draws_only_for_those_who_ask(tmp_path: Path) -> None:
    found = defaults_of(tmp_path, do_sample=False, temperature=0.7, top_k=5, repetition_penalty=1.1)
    assert found == GenerationDefaults(temperature=0.0, repetition_penalty=1.1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"),
        ("temperature", -1),
        ("top_k", 2.5),
        ("top_p", 0.0),
        ("min_p", [0.1]),
        ("repetition_penalty", True),
    ],
)
def test_a_default_that_no_request_could_have_is_left_out_and_said(
    tmp_path: Path, name: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert defaults_of(tmp_path, **{name: value}) == GenerationDefaults()
    (record,) = caplog.records
    assert "generation_config.json" in record.getMessage()
    assert name in record.getMessage()
