"""The layers of every model family that can be sized, read from config.json. Pure.

One function per family returns layer i. An absent key means the default of transformers'
configuration class for that family. A family that is not here (a state space model, a multimodal
wrapper) is an error: no other family's formula sizes it. engine_support.py lists the families that
the engine supports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from atom.sizing.config_fields import Config
from atom.sizing.errors import ModelFactsError, UnknownFamilyError
from atom.sizing.families.checkpoint_names import NamePairs, engine_name
from atom.sizing.families.deepseek import (
    deepseek_v2,
    deepseek_v3,
    deepseek_v32,
    glm4_moe_lite,
    glm_moe_dsa,
)
from atom.sizing.families.deepseek_v4 import (
    deepseek_v4,
    deepseek_v4_fields,
    deepseek_v4_names,
)
from atom.sizing.families.dense import (
    eagle3,
    ernie4_5,
    exaone4,
    gemma2,
    gemma3,
    hunyuan,
    llama,
    mistral,
    olmo3,
    phi3,
    qwen2,
    qwen3,
    seed_oss,
    smollm3,
)
from atom.sizing.families.experts import (
    ernie4_5_moe,
    glm4_moe,
    gpt_oss,
    hunyuan_moe,
    llama4,
    mimo_v2,
    mimo_v2_mtp,
    minimax_m2,
    mixtral,
    qwen2_moe,
    qwen3_moe,
)
from atom.sizing.families.gemma4 import gemma4, gemma4_names
from atom.sizing.families.hybrid import qwen3_5, qwen3_5_moe, qwen3_next
from atom.sizing.families.kimi_linear import (
    kimi_linear,
    kimi_linear_fields,
    kimi_linear_names,
)
from atom.sizing.families.lfm2 import lfm2, lfm2_fields, lfm2_moe, lfm2_names
from atom.sizing.families.mamba2 import (
    granite_hybrid,
    granite_hybrid_names,
    nemotron_h,
    nemotron_h_fields,
    nemotron_h_names,
)
from atom.sizing.families.nearest_family import nearest
from atom.sizing.families.reading import Family, ties_head
from atom.sizing.layers import ExpertsBlock, Stacking
from atom.sizing.text_part import text_name, text_part, wrapper_of

# Qwen3.5's plain checkpoints have a layer's experts in one tensor, its fp8 ones each apart.
_QWEN35_BLOCK = ExpertsBlock(shared="shared_expert", stacking=Stacking.AS_FOUND)
_GRANITE_BLOCK = ExpertsBlock(stacking=Stacking.OUTPUTS_FIRST, stacked_by=("compressed-tensors",))
_GEMMA4_BLOCK = ExpertsBlock(name="moe", router="router", stacking=Stacking.AS_FOUND)
_MIXTRAL_BLOCK = ExpertsBlock(name="block_sparse_moe", matrices=("w1", "w3", "w2"))
_MINIMAX_BLOCK = ExpertsBlock(
    name="block_sparse_moe", matrices=("w1", "w3", "w2"), correction="e_score_correction_bias"
)
_ERNIE_BLOCK = ExpertsBlock(
    correction="moe_statics.e_score_correction_bias", correction_in_row=True
)
_GPT_OSS_BLOCK = ExpertsBlock(router="router", stacking=Stacking.IN_TURN, stacked_by=("mxfp4",))
_LLAMA4_BLOCK = ExpertsBlock(
    name="feed_forward",
    dense="feed_forward",
    router="router",
    shared="shared_expert",
    stacking=Stacking.SIDE_BY_SIDE,
    stacked_by=("fbgemm_fp8",),
    parted_by=("compressed-tensors", "awq", "gptq"),
)
FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(llama),
    "Qwen3ForCausalLM": Family(qwen3),
    "Qwen3MoeForCausalLM": Family(qwen3_moe),
    "Qwen2ForCausalLM": Family(qwen2),
    "Qwen2MoeForCausalLM": Family(qwen2_moe, experts_block=ExpertsBlock(shared="shared_expert")),
    "Qwen3_5ForCausalLM": Family(qwen3_5, mtp_key="mtp_num_hidden_layers", mtp_prefix="mtp."),
    "Qwen3_5MoeForCausalLM": Family(
        qwen3_5_moe,
        experts_block=_QWEN35_BLOCK,
        mtp_key="mtp_num_hidden_layers",
        mtp_prefix="mtp.",
    ),
    # Its config.json does not mention the MTP layer of its checkpoints.
    "Qwen3NextForCausalLM": Family(
        qwen3_next,
        experts_block=ExpertsBlock(shared="shared_expert"),
        mtp_default=1,
        mtp_prefix="mtp.",
    ),
    "Lfm2ForCausalLM": Family(lfm2, tied=True, fields=lfm2_fields, names=lfm2_names),
    "Lfm2MoeForCausalLM": Family(lfm2_moe, tied=True, fields=lfm2_fields, names=lfm2_names),
    "GraniteMoeHybridForCausalLM": Family(
        granite_hybrid,
        experts_block=_GRANITE_BLOCK,
        names=granite_hybrid_names,
    ),
    "NemotronHForCausalLM": Family(
        nemotron_h,
        activation_key="mlp_hidden_act",
        fields=nemotron_h_fields,
        names=nemotron_h_names,
        ties=False,
        modules=(("model.layers", "backbone.layers"),),
    ),
    "KimiLinearForCausalLM": Family(
        kimi_linear,
        fields=kimi_linear_fields,
        names=kimi_linear_names,
        ties=False,
        modules=(("self_attn.forget_gate", "self_attn"),),
    ),
    "MistralForCausalLM": Family(mistral),
    "MixtralForCausalLM": Family(mixtral, experts_block=_MIXTRAL_BLOCK),
    "DeepseekV2ForCausalLM": Family(deepseek_v2),
    "DeepseekV3ForCausalLM": Family(deepseek_v3),
    "DeepseekV32ForCausalLM": Family(deepseek_v32),
    "DeepseekV4ForCausalLM": Family(
        deepseek_v4, fields=deepseek_v4_fields, names=deepseek_v4_names
    ),
    "Glm4MoeForCausalLM": Family(glm4_moe),
    "GptOssForCausalLM": Family(gpt_oss, experts_block=_GPT_OSS_BLOCK),
    "Llama4ForCausalLM": Family(llama4, experts_block=_LLAMA4_BLOCK, turned_experts=True),
    "MiniMaxM2ForCausalLM": Family(minimax_m2, experts_block=_MINIMAX_BLOCK),
    # Its checkpoints have three MTP layers, which its config.json does not mention.
    "MiMoV2FlashForCausalLM": Family(
        mimo_v2, mtp_prefix="model.mtp.", mtp_layer=mimo_v2_mtp, mtp_alias="model.decoder"
    ),
    "Glm4MoeLiteForCausalLM": Family(glm4_moe_lite),
    "GlmMoeDsaForCausalLM": Family(glm_moe_dsa),
    "SeedOssForCausalLM": Family(seed_oss),
    "SmolLM3ForCausalLM": Family(smollm3, tied=True),
    "Ernie4_5ForCausalLM": Family(ernie4_5, tied=True),
    "Ernie4_5_MoeForCausalLM": Family(ernie4_5_moe, tied=True, experts_block=_ERNIE_BLOCK),
    "Exaone4ForCausalLM": Family(exaone4),
    "Olmo3ForCausalLM": Family(olmo3),
    "GraniteForCausalLM": Family(llama),
    "Phi3ForCausalLM": Family(phi3),
    "HunYuanDenseV1ForCausalLM": Family(hunyuan),
    "HunYuanMoEV1ForCausalLM": Family(
        hunyuan_moe, experts_block=ExpertsBlock(router="gate.wg", shared="shared_mlp")
    ),
    "Gemma2ForCausalLM": Family(
        gemma2, tied=True, activation_key="hidden_activation", activation="gelu_pytorch_tanh"
    ),
    "Gemma3ForCausalLM": Family(
        gemma3, tied=True, activation_key="hidden_activation", activation="gelu_pytorch_tanh"
    ),
    "Gemma4ForCausalLM": Family(
        gemma4,
        tied=True,
        experts_block=_GEMMA4_BLOCK,
        activation_key="hidden_activation",
        activation="gelu_pytorch_tanh",
        names=gemma4_names,
    ),
}

# Models that only draft for another: their embedding is the target's, their head a smaller one.
DRAFT_FAMILIES: dict[str, Family] = {
    "LlamaForCausalLMEagle3": Family(
        eagle3, tied=True, vocabulary_key="draft_vocab_size", joined_states=3
    ),
}


def family_of(config: Config) -> tuple[str, Family]:
    """Return the architecture and family of a config.json; raises ModelFactsError or
    UnknownFamilyError."""
    value = config.get("architectures")
    families = FAMILIES | DRAFT_FAMILIES
    known = ", ".join(families)
    if not isinstance(value, (list, tuple)) or len(value) != 1:
        raise ModelFactsError(
            f"config.json: architectures must be a list of one name, got {value!r}; known: {known}",
            field="architectures",
        )
    name = str(value[0])
    if name not in families:
        raise UnknownFamilyError(name, known, str(nearest(name, config, FAMILIES) or ""))
    return name, families[name]


def names_of(config: Config) -> NamePairs:
    """Return the pairs of names that differ between a checkpoint with this config.json and the
    engine."""
    text = text_part(config)
    _, family = family_of(text)
    return family.names(family.fields(text))


def is_tied(config: Config) -> bool:
    """Return whether the head is the embedding by a config.json, a text part's or a wrapper's."""
    text = text_part(config)
    return ties_head(family_of(text)[1], text)


def tensor_reader(config: Config) -> Callable[[str], str | None]:
    """Return a function from a checkpoint's tensor name to the engine's name; None for tensors of
    parts that are not served."""
    pairs = names_of(config)
    wrapped = wrapper_of(config) is not None

    def read(stored: str) -> str | None:
        name = text_name(stored) if wrapped else stored
        return None if name is None else engine_name(name, pairs)

    return read


def has_turned_experts(config: Config) -> bool:
    """Return whether adapters have the two matrices of all experts in each other's place."""
    return family_of(text_part(config))[1].turned_experts


def module_reader(config: Config) -> Callable[[str], Iterator[str]]:
    """Return a function that yields the engine's possible names of a module of a checkpoint or of
    transformers' model: its own name, and the names under which a checkpoint of this config.json, a
    wrapper or a bare decoder stores it."""
    pairs = names_of(config)
    _, family = family_of(text_part(config))

    def read(module: str) -> Iterator[str]:
        inner = text_name(f"{module}.weight")
        for name in (module, inner and inner.removesuffix(".weight"), f"model.{module}"):
            if name:
                yield name
                yield engine_name(name, pairs)
                yield engine_name(engine_name(name, family.modules), pairs)

    return read
