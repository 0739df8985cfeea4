"""Classes of transformers that have no family here: equal to transformers, or refused by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from atom.config import EngineOptions, build_config
from atom.errors import AtomError, ModelError
from atom.model_engine.front.weights_update import find_update
from atom.model_engine.model_runner import ModelRunner
from atom.models import fallback
from atom.models.decoder.causal_lm import held_bytes
from atom.models.decoder.fallback import self_proof
from atom.models.decoder.fallback.attention_call import (
    AttentionCall,
    FallbackRefusalError,
    Heads,
)
from atom.models.decoder.fallback.fallback_decoder import FallbackDecoder
from atom.models.decoder.fallback.published_class import build_class, class_config, recorded_calls
from atom.models.decoder.fallback.self_proof import prove
from atom.models.decoder.hidden_states import HiddenStates
from atom.sizing import KvElement, ModelFacts, fallback_notice, kv_layout, rotary_bytes
from atom.sizing.architectures import ARCHITECTURES
from atom.sizing.families.fallback import FALLBACKS
from atom.sizing.options.beside_fallback import REFUSED_BESIDE_FALLBACK
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.byte_tokenizer import build_byte_tokenizer
from tests.support.models.fallback_checkpoints import (
    drawn_settings,
    make_fallback_checkpoint,
    published_model,
)
from tests.support.models.greedy_oracle import GreedyAnswers
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.server.http_app import serve_model

NEW_TOKENS = 8
PROMPT_LENGTHS = (1, 15, 16, 46, 100)
# Layer norms and parallel sums; learned positions; windows and layers without positions.
FEW = ("StableLmForCausalLM", "GPT2LMHeadModel", "Cohere2ForCausalLM")


def prompts(vocab_size: int) -> list[list[int]]:
    draw = np.random.default_rng(7)
    shared = draw.integers(3, vocab_size, size=40).tolist()
    apart = [draw.integers(3, vocab_size, size=length).tolist() for length in PROMPT_LENGTHS]
    return [*apart, shared + apart[1], shared + apart[2]]


@pytest.fixture(scope="module", params=FALLBACKS)
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def logits(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """All that the engine computes from here on."""
    seen: list[torch.Tensor] = []
    compute = FallbackDecoder.forward

    def recorded(model: FallbackDecoder, *inputs: torch.Tensor) -> HiddenStates:
        found = compute(model, *inputs)
        seen.append(found.last.clone())
        return found

    monkeypatch.setattr(FallbackDecoder, "forward", recorded)
    return seen


@pytest.mark.sampled(5)
def test_tokens_and_logits_equal_transformers(
    architecture: str, tmp_path: Path, logits: list[torch.Tensor]
) -> None:
    """In chunks, with several rows in a step, with cached prefixes, and alone."""
    folder = make_fallback_checkpoint(tmp_path, architecture)
    model = published_model(folder, architecture)
    driver = CoreDriver(str(folder), max_num_batched_tokens=48, max_num_seqs=4, block_size=16)
    asked = prompts(driver.vocab_size)
    expected = GreedyAnswers(model, asked, NEW_TOKENS)
    first = driver.generate(asked, max_tokens=NEW_TOKENS, ignore_eos=True)
    assert first == expected.answers(first)
    again = driver.generate(asked, max_tokens=NEW_TOKENS, ignore_eos=True)
    assert again == first
    assert driver.scheduler.stats().cached_tokens_total > 0
    prompt = [3, *asked[4]]  # of no cached prefix
    logits.clear()
    (new,) = driver.generate([prompt], max_tokens=NEW_TOKENS, ignore_eos=True, prompt_logprobs=1)
    with torch.inference_mode():
        wanted = model(torch.tensor([prompt + new])).logits[0, :-1]
    got = torch.cat(logits)
    assert got.shape == wanted.shape
    assert (got - wanted).abs().max() <= 1e-4


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_plan_counts_the_bytes_that_the_engine_holds(
    architecture: str, seed: int, tmp_path: Path
) -> None:
    """A config.json bounds the weights from above; it gives the cache exactly."""
    folder = make_fallback_checkpoint(tmp_path, architecture, seed)
    facts = ModelFacts.from_hf_config(json.loads((folder / "config.json").read_text()))
    options = EngineOptions.of(model=str(folder), device="cpu", num_kv_blocks=24, block_size=16)
    runner = ModelRunner(build_config(options))
    report = runner.initialize(lambda phase, share: None)
    counted, model = runner._config.model.facts, runner._model
    assert counted.weight_bytes(4) + rotary_bytes(facts, 256) == held_bytes(model)
    assert counted.weight_bytes(4) <= facts.weight_bytes(4) <= 3 * counted.weight_bytes(4)
    layers = model.model.layers
    cached = sum(each.nbytes for layer in layers for each in layer.cached_tensors())
    assert report.kv_bytes_per_token == kv_layout(facts, KvElement(4)).bytes_per_token
    assert cached == report.num_blocks * 16 * report.kv_bytes_per_token


def test_the_class_is_built_once_without_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its calls, its names of tensors and its bytes are read from one model."""
    built: list[str] = []

    def build(architecture: str, config: Any) -> Any:
        built.append(architecture)
        return build_class(architecture, config)

    monkeypatch.setattr(fallback, "build_class", build)
    folder = make_fallback_checkpoint(tmp_path, FEW[0], 1)
    options = EngineOptions.of(model=str(folder), device="cpu", num_kv_blocks=24, block_size=16)
    ModelRunner(build_config(options)).initialize(lambda phase, share: None)
    assert built == [FEW[0]]


# ---- the proof ------------------------------------------------------------------------------


def refusal(architecture: str, **settings: Any) -> str:
    """The reason why a class with these settings is refused; "" if it runs."""
    try:
        kind = getattr(transformers, architecture).config_class
        config = class_config(architecture, kind(**settings).to_dict())
        prove(architecture, config, recorded_calls(architecture, config))
    except FallbackRefusalError as error:
        return str(error)
    return ""


def causal_classes() -> list[str]:
    """All of transformers' classes for causal language models that no family serves."""
    from transformers.models.auto import modeling_auto

    names = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return [name for name in dict.fromkeys(names) if name not in ARCHITECTURES]


def _of_defaults(name: str) -> str:
    """The reason why a class with its own default sizes is refused; "" if it runs."""
    if name in FALLBACKS:
        return refusal(name, **drawn_settings(name, 0))
    try:
        getattr(transformers, name).config_class()
    except Exception as error:  # of transformers' own checks
        return f"its own defaults are refused: {error}"
    return refusal(name)


@pytest.mark.parametrize("name", FEW)
def test_a_class_that_is_listed_is_proven(name: str) -> None:
    assert refusal(name) == ""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("MambaForCausalLM", "dimensions"),
        ("CodeGenForCausalLM", "by themselves"),
        ("GraniteSWAForCausalLM", "passes s_aux"),
        ("BertLMHeadModel", "differ from transformers"),
        ("OlmoeForCausalLM", "dimensions"),
        ("DiffLlamaForCausalLM", "more than once"),
        ("FalconForCausalLM", "cannot be built"),
    ],
)
def test_a_class_of_another_kind_is_refused_with_its_reason(name: str, reason: str) -> None:
    assert re.search(reason, refusal(name)), refusal(name)


@pytest.mark.whole
@pytest.mark.slow
def test_every_class_of_transformers_is_listed_or_refused() -> None:
    """None crashes, and none differs: a refusal of a listed class would be a difference."""
    found = {name: _of_defaults(name) for name in causal_classes()}
    assert {name: found[name] for name in FALLBACKS if found.get(name)} == {}
    assert sorted(name for name, reason in found.items() if not reason) == sorted(FALLBACKS)


@pytest.mark.parametrize(
    ("lost", "name"),
    [("window", "Cohere2ForCausalLM"), ("scale", "HeliumForCausalLM")],
)
def test_the_proof_sees_a_rule_that_is_lost(
    lost: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a call's window or scale were not read: the proof names the module."""
    read = AttentionCall.read.__func__  # type: ignore[attr-defined]

    def careless(module: str, heads: Heads, given: dict[str, Any]) -> AttentionCall:
        wrong = {"window": {"sliding_window": None}, "scale": {"scaling": 0.3}}[lost]
        found: AttentionCall = read(AttentionCall, module, heads, {**given, **wrong})
        return found

    monkeypatch.setattr(AttentionCall, "read", careless)
    assert "the first module that differs is model.layers.0.self_attn" in refusal(name)


def test_the_proof_sees_rows_that_share_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole sequences alone would not show that positions are lost."""
    forward = FallbackDecoder.forward

    def careless(model: FallbackDecoder, ids: torch.Tensor, positions: torch.Tensor) -> Any:
        return forward(model, ids, torch.arange(len(ids)))

    monkeypatch.setattr(self_proof.FallbackDecoder, "forward", careless)
    assert "chunks and other rows" in refusal("StableLmForCausalLM")


# ---- refusals -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_fallback_checkpoint(tmp_path_factory.mktemp("fallback"), "StableLmForCausalLM")


ASKED: dict[str, dict[str, Any]] = {
    "data_parallel_size": {"data_parallel_size": 2},
    "enable_sleep_mode": {"enable_sleep_mode": True},
    "kv_cache_dtype": {"kv_cache_dtype": "fp8"},
    "kv_offloading_size": {"kv_offloading_size": 1.0},
    "reproducible": {"reproducible": True},
    "tensor_parallel_size": {"tensor_parallel_size": 2},
    "quantization": {"quantization": "fp8"},
}


@pytest.mark.parametrize("name", ASKED)
def test_an_option_that_is_not_proven_is_refused_by_name(folder: Path, name: str) -> None:
    with pytest.raises(AtomError, match=name):
        build_config(EngineOptions.of(model=str(folder), device="cpu", **ASKED[name]))


def test_the_other_options_of_the_table_are_read() -> None:
    rest = {"enable_lora", "kv_transfer_config", "runner", "speculative_config"}
    assert REFUSED_BESIDE_FALLBACK.keys() == rest | (
        ASKED.keys() - {"tensor_parallel_size", "quantization"}
    )


def test_the_start_says_that_there_is_no_family(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = build_config(EngineOptions.of(model=str(folder), device="cpu"))
    notice = fallback_notice(config.model.facts)
    assert "StableLmForCausalLM has no family here" in notice
    assert notice in caplog.text
    assert config.execution.enforce_eager


@pytest.mark.parametrize("architecture", [None, "StableLmForCausalLM"])
async def test_the_card_of_the_model_has_the_notice(
    tmp_path: Path, architecture: str | None
) -> None:
    if architecture is None:
        make_tiny_checkpoint(tmp_path)
    else:
        make_fallback_checkpoint(tmp_path, architecture, vocab_size=320)
        build_byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    config = build_config(EngineOptions.of(model=str(tmp_path), device="cpu", num_kv_blocks=32))
    async with serve_model(config) as rig:
        (card,) = (await rig.client.get("/v1/models")).json()["data"]
        wanted = {} if architecture is None else {"notice": fallback_notice(config.model.facts)}
        assert {key: card[key] for key in card if key == "notice"} == wanted


def changed(folder: Path, tmp_path: Path, **fields: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(config | fields))
    return tmp_path


def test_a_rope_that_grows_with_the_longest_request_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    other = changed(folder, tmp_path, rope_parameters=rope)
    with pytest.raises(ModelError, match="dynamic"):
        build_config(EngineOptions.of(model=str(other), device="cpu"))


def test_a_refusal_at_the_start_names_the_module_and_the_nearest_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: Any) -> None:
        raise FallbackRefusalError("model.layers.0.self_attn: passes s_aux")

    monkeypatch.setattr("atom.models.fallback.prove", refused)
    folder = make_fallback_checkpoint(tmp_path, "Olmo2ForCausalLM")
    said = r"layers\.0\.self_attn: passes s_aux; the nearest family is Olmo3ForCausalLM \(by name\)"
    with pytest.raises(ModelError, match=said):
        CoreDriver(str(folder))


def test_new_weights_are_refused(folder: Path) -> None:
    model = build_config(EngineOptions.of(model=str(folder), device="cpu")).model
    with pytest.raises(AtomError, match="has no family here"):
        find_update(model, str(folder), None, "wait")  # type: ignore[arg-type]
