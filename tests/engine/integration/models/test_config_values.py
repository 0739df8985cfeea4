"""Every value of a config.json that a family reads, replaced by each kind of nonsense: the model is
built as if the key were absent, or refused with the file, the key and what it must be."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from atom.checkpoint import Checkpoint
from atom.config import Config, EngineOptions, build_config
from atom.errors import ConfigError, ModelError
from atom.model_ops.backends import resolve_ops
from atom.model_ops.linear import Build
from atom.models.registry import build_model, model_spec
from atom.sizing.architectures import ARCHITECTURES, family_of
from atom.sizing.config_schema import FIELDS, ROPE_FIELDS
from atom.sizing.config_schema.value_kinds import Flag, ListOf, Number, Text, Whole
from atom.sizing.families.reading import Family
from tests.support.models.multimodal_checkpoint import make_multimodal_checkpoint
from tests.support.models.tiny_model import Architecture, make_tiny_checkpoint

FAMILIES = get_args(Architecture)
NONSENSE: tuple[Any, ...] = (
    0, -1, 5.5, 1e308, -1e308, 10**30, float("nan"), float("inf"), "x", "", True, [], ["x"], [[]],
    {}, {"a": 1},
)  # fmt: skip
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 2.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
        "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0, "truncate": True,
    },
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "longrope": {
        "rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 128,
        "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "attention_factor": 1.1,
    },
}  # fmt: skip


def start(folder: Path, config: Mapping[str, Any]) -> Config:
    """What an engine does of a config.json before it reads weights."""
    (folder / "config.json").write_text(json.dumps(config))
    built = build_config(EngineOptions.of(model=str(folder), device="cpu"))
    spec = model_spec(built.model)
    case = spec.op_case(torch.float32, torch.float32, 16)
    with torch.device("meta"):
        build_model(spec, Build(resolve_ops("cpu", case, "torch_ref").ops))
    return built


def problem(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The refusal; None where the model is built. Anything but a typed refusal is raised."""
    try:
        start(folder, config)
    except (ModelError, ConfigError) as error:
        return str(error)
    return None


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Architecture:
    found: Architecture = request.param
    return found


@pytest.fixture(scope="module")
def tiny(family: Architecture, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp(family), family)


def config_of(folder: Path) -> dict[str, Any]:
    original = folder / "original.json"
    if not original.exists():
        original.write_text((folder / "config.json").read_text())
    config: dict[str, Any] = json.loads(original.read_text())
    return config


@pytest.mark.parametrize("share", [12, pytest.param(1, marks=pytest.mark.whole)])
def test_nonsense_is_refused_by_its_key_in_every_family(
    tiny: Path, family: Architecture, share: int
) -> None:
    """Each family tries another twelfth of the values, if share is 12."""
    config = config_of(tiny)
    wrong: list[str] = []
    for key, value in list(keyed_nonsense(config))[FAMILIES.index(family) % share :: share]:
        said = problem(tiny, config | {key: value})
        if FIELDS[key].takes(value):
            continue  # in range: it may be built, or refused for what it does not go with
        if said is None or f"config.json: {key} is " not in said or "must be" not in said:
            wrong.append(f"{key} = {value!r}: {said}")
    assert not wrong


def keyed_nonsense(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in FIELDS:
        if key in config:
            for value in NONSENSE:
                yield key, value


# Null means something of its own, or is refused.
_NULL_MEANS = (
    "sliding_window", "attention_chunk_size", "n_group", "topk_group", "q_lora_rank",
    "attention_multiplier", "final_logit_softcapping", "attn_logit_softcapping",
)  # fmt: skip


@pytest.mark.parametrize("share", [8, pytest.param(1, marks=pytest.mark.whole)])
def test_null_is_as_if_the_key_were_absent_and_a_switch_off(
    tiny: Path, family: Architecture, share: int
) -> None:
    """Each family tries another eighth of the keys, if share is 8."""
    config = config_of(tiny)
    keys = list(filter(config.__contains__, FIELDS))
    for key in keys[FAMILIES.index(family) % share :: share]:
        if key in _NULL_MEANS:
            continue
        absent = {name: value for name, value in config.items() if name != key}
        if isinstance(FIELDS[key], Flag) and not key.startswith("tie_"):
            absent = config | {key: False}
        assert problem(tiny, config | {key: None}) == problem(tiny, absent), key


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling"])
def test_nonsense_in_a_rope_is_refused_by_its_key(tmp_path: Path, kind: str, spelling: str) -> None:
    make_tiny_checkpoint(tmp_path, "llama")
    config = {key: value for key, value in config_of(tmp_path).items() if "rope" not in key}
    rope = ROPES[kind] | {"rope_theta": 10_000.0}
    assert problem(tmp_path, config | {spelling: rope}) is None
    wrong: list[str] = []
    for key in rope:
        for value in NONSENSE:
            if ROPE_FIELDS[key].takes(value):
                continue
            said = problem(tmp_path, config | {spelling: rope | {key: value}})
            if said is None or f"{spelling}.{key} is " not in said:
                wrong.append(f"{key} = {value!r}: {said}")
    for value in NONSENSE:
        if not isinstance(value, dict) and problem(tmp_path, config | {spelling: value}) is None:
            wrong.append(f"{spelling} = {value!r}")
    assert not wrong


class Watched(dict[str, Any]):
    """A config.json that notes which keys are read of it."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


# Read where they have checks of their own.
_ELSEWHERE = {"dtype", "torch_dtype", "rope_parameters", "rope_scaling", "time_step_limit"}


def test_every_key_that_a_family_reads_has_a_type_and_a_range(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[Watched] = []

    def watch(config: Mapping[str, Any]) -> dict[str, Any]:
        watched.append(Watched(config))
        return watched[-1]

    def watch_fields(config: Mapping[str, Any]) -> tuple[str, Family]:
        name, family = family_of(config)
        return name, replace(family, fields=lambda read: watch(family.fields(read)))

    monkeypatch.setattr("atom.sizing.model_facts.family_of", watch_fields)
    monkeypatch.setattr("atom.sizing.text_part.checked", watch)
    monkeypatch.setattr("atom.sizing.model_facts.text_part", watch)
    monkeypatch.setattr("atom.config.text_part", watch)
    start(tiny, config_of(tiny))
    read = {key for config in watched for key in config.read}
    assert len(read) > 10
    assert read.difference(FIELDS, _ELSEWHERE) == set()


def test_a_checkpoint_without_architectures_goes_by_its_model_type(tiny: Path) -> None:
    config = config_of(tiny)
    (named,) = config.pop("architectures")
    for nothing in ({}, {"architectures": None}, {"architectures": []}):
        assert start(tiny, config | nothing).model.architecture == named


def test_model_types_are_those_of_transformers() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    theirs = dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    for name, row in ARCHITECTURES.items():
        assert theirs[row.model_type] == name


@pytest.mark.parametrize("value", [5, "x", [], True])
def test_a_text_part_that_is_no_object_is_refused(tmp_path: Path, value: Any) -> None:
    make_multimodal_checkpoint(tmp_path, "gemma3")
    said = problem(tmp_path, config_of(tmp_path) | {"text_config": value})
    assert said is not None
    assert "text_config is" in said


def test_nonsense_within_a_text_part_is_refused(tmp_path: Path) -> None:
    make_multimodal_checkpoint(tmp_path, "gemma3")
    config = config_of(tmp_path)
    text = config["text_config"] | {"rms_norm_eps": -1}
    assert "rms_norm_eps is -1" in str(problem(tmp_path, config | {"text_config": text}))


def test_kinds_say_what_they_take() -> None:
    """Each kind's words are a range that its own bounds are in."""
    assert Whole(1, 8).takes(8.0)
    assert not Whole(1, 8).takes(8.5)
    assert not Whole(1, 8).takes(True)
    assert Number(0.0, 1.0, inclusive=True).takes(0)
    assert not Number(0.0, 1.0).takes(0)
    assert not Number(0.0, 1.0).takes(float("nan"))
    assert ListOf(Whole(0, 3), most=2, alone=True).takes(3)
    assert not ListOf(Whole(0, 3), most=2).takes([1, 2, 3])
    assert not Flag().takes(1)
    assert not Text().takes(None)


def test_an_architecture_of_nothing_names_the_key(tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path, "llama")
    config = config_of(tmp_path) | {"architectures": None, "model_type": "no_such_model"}
    said = problem(tmp_path, config)
    assert said is not None
    assert "architectures" in said
    assert Checkpoint(tmp_path, config, {}).architecture == "(none)"
