"""Prompts with images beside every pair of the engine's features: the tokens of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from atom.lora_config import LoraConfig, LoraModule
from atom.model_engine.control import Sleep, WakeUp
from atom.model_engine.request import LoRARequest
from atom.sampling_params import SamplingParams
from atom.speculative_config import SpeculativeConfig
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.vision_checkpoints import VisionModel, pictures_and_texts

GREEDY = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
FEATURES: dict[str, dict[str, Any]] = {
    "drafts": {"speculative": SpeculativeConfig(num_tokens=2, fewest_matched=1, adaptive=False)},
    "drafts of earlier answers": {
        "speculative": SpeculativeConfig(method="suffix", num_tokens=2, adaptive=False)
    },
    "adapters": {"lora": True},
    "a tier in the host's memory": {
        "kv_offloading_size": 0.01, "kv_offload_min_tokens": 0, "num_kv_blocks": 14,
        "max_model_len": 128,
    },
    "a tier in files": {
        "kv_offloading_size": 0.01, "kv_offload_min_tokens": 0, "num_kv_blocks": 14,
        "max_model_len": 128, "kv_disk_dir": True, "kv_disk_size": 0.1,
    },
    "a host a step late": {"depth": 1},
    "masks after the layers": {"samples_later": True},
    "prompts first": {"scheduling_policy": "prefill_first"},
    "no prefix cache": {"enable_prefix_caching": False},
    "short chunks": {"max_num_batched_tokens": 9},
    "an fp32 cache of single tokens": {"block_size": 1},
    "the reference": {"backend": "torch_ref"},
}  # fmt: skip
TIERS = ("a tier in the host's memory", "a tier in files")
# A tier needs cached prefixes, and has pages of whole blocks; files are behind the host's memory.
APART = {
    frozenset(TIERS),
    frozenset({"drafts", "drafts of earlier answers"}),
    *(frozenset({tier, "no prefix cache"}) for tier in TIERS),
    *(frozenset({tier, "an fp32 cache of single tokens"}) for tier in TIERS),
}
PAIRS = [pair for pair in combinations(FEATURES, 2) if frozenset(pair) not in APART]
KINDS = ("gemma3", "llama4", "mistral3", "qwen3-vl", "qwen3.5")
# Models of `make test`, for which to make a model, its adapter and its answers takes the most time.
_DAILY = ("gemma3", "llama4")


def of_models(features: Sequence[tuple[str, ...]], daily: str = "") -> list[Any]:
    """Each combination with one model by turns, with the next one in `make test-all` as well, and
    with every other in `make test-long`. daily: a feature without which all are in test-all."""
    found = []
    for number, names in enumerate(features):
        for place in range(len(KINDS)):
            kind = KINDS[(number + place) % len(KINDS)]
            marks: Any = pytest.mark.slow if place > 1 else pytest.mark.whole
            if place == 0 and kind in _DAILY and (not daily or daily in names):
                marks = ()
            found.append(pytest.param(kind, names, id=f"{kind}-{' and '.join(names)}", marks=marks))
    return found


@pytest.fixture(scope="module")
def models(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[VisionModel, VisionModel, Path]:
    """The model, the model with an adapter, and the adapter's folder."""
    folder = tmp_path_factory.mktemp("vision")
    model = VisionModel(folder / "model", request.param)
    return model, model.adapted(folder / "adapter"), folder / "adapter"


@pytest.fixture(scope="module")
def expected(models: tuple[VisionModel, VisionModel, Path]) -> dict[tuple[int, bool], list[int]]:
    """The tokens of each prompt, without and with the adapter."""
    plain, adapted, _ = models
    return {
        (at, own): (adapted if own else plain).greedy(prompt, 5)
        for at, prompt in enumerate(pictures_and_texts(plain))
        for own in (False, True)
    }


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("models", "pair"), of_models(PAIRS), indirect=["models"])
def test_a_pair_of_features_changes_no_token(
    models: tuple[VisionModel, VisionModel, Path],
    expected: dict[tuple[int, bool], list[int]],
    pair: tuple[str, str],
    tmp_path: Path,
) -> None:
    engine, asked, wanted = _begun(models, expected, pair, tmp_path)
    assert engine.generate_each(asked) == wanted
    assert engine.generate_each(asked) == wanted  # from what is cached
    assert engine.scheduler.stats().image_bytes == 0
    engine.close()


def _begun(
    models: tuple[VisionModel, VisionModel, Path],
    expected: dict[tuple[int, bool], list[int]],
    features: Sequence[str],
    folder: Path,
) -> tuple[CoreDriver, list[tuple[Any, ...]], list[list[int]]]:
    """Start an engine with features; return it, requests, and the tokens of their answers."""
    model, _, adapter = models
    options: dict[str, Any] = {"max_num_batched_tokens": 48, "max_num_seqs": 4, "block_size": 16}
    for feature in features:
        options |= FEATURES[feature]
    if model.kind == "llama4" and "num_kv_blocks" in options:
        options["num_kv_blocks"] *= 2  # its layers are in more groups
    if "kv_disk_dir" in options:
        options["kv_disk_dir"] = str(folder)
    has_adapter = options.pop("lora", False)
    if has_adapter:
        modules = (LoraModule(name="own", path=str(adapter), folder=str(adapter)),)
        options["lora"] = LoraConfig(modules=modules)
    engine = CoreDriver(str(model.folder), **options)
    prompts = pictures_and_texts(model)
    own = [has_adapter and at % 2 == 1 for at in range(len(prompts))]
    asked = [
        prompt.asked(GREEDY, LoRARequest("own", 1) if mine else None)
        for prompt, mine in zip(prompts, own, strict=True)
    ]
    return engine, asked, [expected[at, mine] for at, mine in enumerate(own)]


# ---- in the middle of answers -------------------------------------------------------------------


Tokens = dict[int, list[int]]  # of each request


def _preempt(engine: CoreDriver, tokens: Tokens) -> None:
    for result in engine.pipeline.preempt_all():
        for number, run in result.runs():
            tokens[number] += run


def _sleep(engine: CoreDriver, tokens: Tokens) -> None:
    _preempt(engine, tokens)
    engine.scheduler.blocks.reset_prefix_cache()
    assert engine.scheduler.images is not None
    engine.scheduler.images.forget_all()
    engine.executor.control(Sleep(2, False))
    engine.executor.control(WakeUp())


INTERRUPTIONS = {"handed over": None, "asleep": _sleep, "preempted": _preempt}
# Adapters of an engine that slept at level 2 are loaded by its core again.
_SPARED = {("asleep", "adapters")}
INTERRUPTED = [
    (each, feature)
    for each in INTERRUPTIONS
    for feature in FEATURES
    if (each, feature) not in _SPARED
]


@pytest.mark.parametrize(
    ("models", "interrupted"), of_models(INTERRUPTED, daily="drafts"), indirect=["models"]
)
def test_an_answer_goes_on_after_an_interruption(
    models: tuple[VisionModel, VisionModel, Path],
    expected: dict[tuple[int, bool], list[int]],
    interrupted: tuple[str, str],
    tmp_path: Path,
) -> None:
    """The whole answer is that of an engine which nothing interrupts."""
    interruption, feature = interrupted
    begin = partial(_begun, models, expected, (feature,), tmp_path)
    engine, asked, wanted = begin()
    tokens: Tokens = {engine.add(*each): [] for each in asked}
    while sum(map(len, tokens.values())) < len(asked):
        _take(engine, tokens)
    interrupt = INTERRUPTIONS[interruption]
    if interrupt is not None:
        interrupt(engine, tokens)
        found = _finished(engine, tokens)
    else:
        going = {at for at in tokens if engine.pipeline.knows(at)}
        engine.pipeline.abort(going)
        engine.close()
        engine = begin()[0]  # continues after the tokens so far
        added = {at: engine.add(*asked[at][:3], tokens[at], asked[at][4]) for at in sorted(going)}
        rest = dict(
            zip(added, _finished(engine, {each: [] for each in added.values()}), strict=True)
        )
        found = [tokens[at] + rest.get(at, []) for at in sorted(tokens)]
    assert found == wanted
    assert engine.scheduler.stats().image_bytes == 0
    engine.close()


def _finished(engine: CoreDriver, tokens: Tokens) -> list[list[int]]:
    """Return the tokens of each request once all have ended."""
    while engine.has_work():
        _take(engine, tokens)
    return list(tokens.values())


def _take(engine: CoreDriver, tokens: Tokens) -> None:
    """Compute a step, and take its tokens."""
    result = engine.step() if engine.has_work() else None
    for number, run in () if result is None else result.runs():
        tokens[number] += run
