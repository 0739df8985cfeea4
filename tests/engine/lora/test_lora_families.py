"""Adapters of every family that runs are PEFT's: all linear layers, experts, names in full.

Of each family one engine serves two drawn adapters and none in one batch. The first has every
matrix that adapters are served for; the second a drawn part of them, with ranks and scales that
name some modules in full, as PEFT writes them itself.
"""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from atom.lora_checkpoint import WEIGHTS_FILE
from atom.lora_config import LoraConfig, LoraModule
from atom.sampling_params import SamplingParams
from tests.engine.lora.test_lora_parity import oracle, request_of
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.hybrid_checkpoints import HYBRID
from tests.support.models.lora_adapter import adapt, linear_names
from tests.support.models.multimodal_checkpoint import KINDS, make_multimodal_checkpoint
from tests.support.models.tiny_model import Architecture, make_tiny_checkpoint

PARAMS = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True, logprobs=0)
OPTIONS: dict[str, Any] = {
    "num_kv_blocks": 80, "max_num_seqs": 8, "max_num_batched_tokens": 48, "max_model_len": 256,
}  # fmt: skip
SPARSE: dict[str, dict[str, Any]] = {
    "gemma4": {
        "layers": 3,
        "extra": {
            "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2,
            "moe_intermediate_size": 40,
        },
    },
    "deepseek3": {
        "extra": {
            "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
            "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
        },
    },
}  # fmt: skip
# Whose published matrices transformers fuses, so that PEFT's adapters name none of them.
FUSED_BY_TRANSFORMERS = ("minimax_m3",)
FAMILIES: dict[str, dict[str, Any]] = {
    **{
        name: {"architecture": name, "layers": 3}
        for name in get_args(Architecture)
        if name not in FUSED_BY_TRANSFORMERS
    },
    **HYBRID,
    **{f"{name}, experts": {"architecture": name, **asked} for name, asked in SPARSE.items()},
}


def experts_of(model: transformers.PreTrainedModel) -> list[str]:
    """List the parameters of all experts of each layer."""
    return [
        name
        for name, weight in model.named_parameters()
        if ".experts." in name and weight.dim() == 3
    ]


def drawn(model: transformers.PreTrainedModel, draw: random.Random) -> dict[str, Any]:
    """Draw settings of an adapter: some modules and experts, ranks and scales by full names."""
    modules, experts = linear_names(model), experts_of(model)
    chosen = draw.sample(modules, max(2, len(modules) // 2))
    stacks = draw.sample(experts, len(experts) // 2)
    named = draw.sample([*chosen, *stacks], 2)
    return {
        "target_modules": chosen,
        "target_parameters": stacks or None,
        "rank": 3,
        "rank_pattern": {named[0]: 7},
        "alpha_pattern": {named[1]: 29, draw.choice(named).rpartition(".")[2]: 5},
        "use_rslora": draw.random() < 0.5,
    }


def check(folder: Path, models: list[nn.Module], adapters: list[Path], *, experts: bool) -> None:
    """Hold an engine with all adapters in one batch to the models, of which the first has none."""
    lora = LoraConfig(
        modules=tuple(
            LoraModule(name=f"adapter-{number}", path=str(path))
            for number, path in enumerate(adapters, 1)
        ),
        max_loras=2,
        max_rank=8,
        max_cpu_loras=2,
        experts=experts,
    )
    engine = CoreDriver(str(folder), lora=lora, **OPTIONS)
    draw = random.Random(3)
    sizes = (1, 17, 40)
    prompts = [[draw.randrange(3, engine.vocab_size) for _ in range(size)] for size in sizes]
    asked = [(each, PARAMS, request_of(number)) for number in range(3) for each in prompts]
    answers = engine.generate_each(asked)
    found = [[entry.logprob for entry in entries] for entries in engine.logprobs]
    for (prompt, _, chosen), told, logprobs in zip(asked, answers, found, strict=True):
        _, wanted = oracle(models[chosen.lora_int_id if chosen else 0], prompt, told)
        assert logprobs == pytest.approx(wanted, abs=2e-3)
    of_one = {str(found[first : first + len(sizes)]) for first in range(0, len(found), len(sizes))}
    assert len(of_one) == len(models), "an adapter that changes nothing proves nothing"


def as_written(model: nn.Module, path: Path) -> nn.Module:
    """Return a copy of the model with the adapter of the file: PEFT sorts patterns as it writes
    them, and the first one that matches counts."""
    from peft import PeftModel

    return PeftModel.from_pretrained(copy.deepcopy(model), path).eval()


# Hybrid models that are those of their architecture with another number of layers.
_REPEATED = {name for name, asked in HYBRID.items() if "extra" not in asked}


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=pytest.mark.whole if name in _REPEATED else ()) for name in FAMILIES],
)
def test_adapters_of_a_family_are_peft_s(family: str, tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model", **FAMILIES[family])
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    draw = random.Random(family)
    experts = experts_of(model)
    settings = [{"target_parameters": experts or None}, drawn(model, draw)]
    adapters = [tmp_path / "all", tmp_path / "some"]
    models: list[nn.Module] = [model]
    for seed, (path, asked) in enumerate(zip(adapters, settings, strict=True)):
        adapt(copy.deepcopy(model), path, seed=seed, **asked)
        models.append(as_written(model, path))
    check(folder, models, adapters, experts=bool(experts))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_adapters_of_a_multimodal_checkpoint_are_peft_s(kind: str, tmp_path: Path) -> None:
    made = make_multimodal_checkpoint(tmp_path / "model", kind)
    modules = [name for name in linear_names(made) if "language_model" in name]
    draw = random.Random(kind)
    named = draw.sample(modules, 2)
    settings: list[dict[str, Any]] = [
        {"alpha_pattern": {named[0]: 29}, "rank_pattern": {named[1]: 7}},
        {"target_modules": draw.sample(modules, len(modules) // 2)},
    ]
    adapters = [tmp_path / "all", tmp_path / "some"]
    models: list[nn.Module] = [made]
    for seed, (path, asked) in enumerate(zip(adapters, settings, strict=True)):
        adapt(copy.deepcopy(made), path, seed=seed, **{"target_modules": modules, **asked})
        models.append(as_written(made, path))
    check(tmp_path / "model", models, adapters, experts=False)


@pytest.mark.parametrize("spelling", ["backbone.layers", "model.layers"])
def test_names_of_nvidias_code_and_of_transformers_are_one(spelling: str, tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model", "nemotron_h")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    adapted = adapt(model, tmp_path / "adapter", target_modules=["q_proj", "up_proj", "in_proj"])
    file = tmp_path / "adapter" / WEIGHTS_FILE
    save_file(
        {name.replace("model.layers", spelling): each for name, each in load_file(file).items()},
        file,
    )
    other = tmp_path / "other"
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    second = adapt(plain, other, target_modules=["o_proj"], seed=1)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    check(folder, [base, adapted, second], [tmp_path / "adapter", other], experts=False)
