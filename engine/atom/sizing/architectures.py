"""The architectures that this version's engine runs, each declared in one row. Pure.

A row has the name in config.json, the model_type, the model's common name, the module below
`atom.models`, and the readers of its layers. The engine's registry, the refusals of engine and
operator, the reading of a config.json without `architectures`, single-file checkpoints and the page
of models derive from this table. An architecture that is not here is an error: no other family's
formula sizes it.
"""

from __future__ import annotations

from dataclasses import replace

from atom.sizing.config_fields import Config
from atom.sizing.errors import ModelFactsError, UnknownFamilyError
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
from atom.sizing.families.encoder_rows import ENCODERS
from atom.sizing.families.experts import (
    ernie4_5_moe,
    glm4_moe,
    gpt_oss,
    hunyuan_moe,
    llama4,
    mimo_v2,
    mimo_v2_mtp,
    minimax_m2,
    minimax_m3,
    minimax_m3_fields,
    mixtral,
    qwen2_moe,
    qwen3_moe,
)
from atom.sizing.families.fallback import FALLBACKS
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
from atom.sizing.families.reading import (
    ActivationField,
    Architecture,
    DraftHead,
    Family,
    Head,
    MtpLayers,
    StoredNames,
)
from atom.sizing.layers import ExpertsBlock, Stacking

# Qwen3.5's plain checkpoints have a layer's experts in one tensor, its fp8 ones each apart.
_QWEN35_BLOCK = ExpertsBlock(shared="shared_expert", stacking=Stacking.AS_FOUND)
_QWEN35_MTP = MtpLayers(key="mtp_num_hidden_layers", prefix="mtp.")
_GRANITE_BLOCK = ExpertsBlock(stacking=Stacking.OUTPUTS_FIRST, stacked_by=("compressed-tensors",))
_GEMMA4_BLOCK = ExpertsBlock(name="moe", router="router", stacking=Stacking.AS_FOUND)
_MIXTRAL_BLOCK = ExpertsBlock(name="block_sparse_moe", matrices=("w1", "w3", "w2"))
_MINIMAX_BLOCK = ExpertsBlock(
    name="block_sparse_moe", matrices=("w1", "w3", "w2"), correction="e_score_correction_bias"
)
_MINIMAX_M3_BLOCK = replace(_MINIMAX_BLOCK, shared_matrices=("gate_proj", "up_proj", "down_proj"))
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
_GEMMA_ACTIVATION = ActivationField("hidden_activation", "gelu_pytorch_tanh")
_V4_MTP = "its layers that predict are of a kind of their own, which transformers does not define"


_ROWS = (
    Architecture("LlamaForCausalLM", "llama", "Llama 2/3", "llama", Family(llama), gguf="llama"),
    Architecture("Qwen2ForCausalLM", "qwen2", "Qwen2/2.5", "qwen", Family(qwen2), gguf="qwen2"),
    Architecture("Qwen3ForCausalLM", "qwen3", "Qwen3", "qwen", Family(qwen3), gguf="qwen3"),
    Architecture("MistralForCausalLM", "mistral", "Mistral", "mistral", Family(mistral)),
    Architecture("Glm4MoeForCausalLM", "glm4_moe", "GLM-4.5", "glm_moe", Family(glm4_moe)),
    Architecture(
        "GptOssForCausalLM",
        "gpt_oss",
        "gpt-oss",
        "gpt_oss",
        Family(gpt_oss, experts_block=_GPT_OSS_BLOCK),
    ),
    Architecture(
        "MiniMaxM2ForCausalLM",
        "minimax_m2",
        "MiniMax-M2",
        "minimax",
        Family(minimax_m2, experts_block=_MINIMAX_BLOCK),
    ),
    Architecture(
        "MiniMaxM3VLForCausalLM",
        "minimax_m3_vl_text",
        "MiniMax-M3",
        "minimax_m3",
        Family(minimax_m3, experts_block=_MINIMAX_M3_BLOCK, fields=minimax_m3_fields),
    ),
    # Its checkpoints have three MTP layers, which its config.json does not mention.
    Architecture(
        "MiMoV2FlashForCausalLM",
        "mimo_v2_flash",
        "MiMo-V2-Flash",
        "mimo",
        Family(
            mimo_v2, mtp=MtpLayers(prefix="model.mtp.", layer=mimo_v2_mtp, alias="model.decoder")
        ),
    ),
    Architecture(
        "Glm4MoeLiteForCausalLM",
        "glm4_moe_lite",
        "GLM-4.7-Flash",
        "deepseek",
        Family(glm4_moe_lite),
    ),
    Architecture("GlmMoeDsaForCausalLM", "glm_moe_dsa", "GLM-5", "deepseek", Family(glm_moe_dsa)),
    Architecture("SeedOssForCausalLM", "seed_oss", "Seed-OSS", "llama", Family(seed_oss)),
    Architecture(
        "SmolLM3ForCausalLM",
        "smollm3",
        "SmolLM3",
        "smollm3",
        Family(smollm3, head=Head.TIED_BY_DEFAULT),
    ),
    Architecture(
        "Ernie4_5ForCausalLM",
        "ernie4_5",
        "ERNIE 4.5",
        "ernie",
        Family(ernie4_5, head=Head.TIED_BY_DEFAULT),
    ),
    Architecture(
        "Ernie4_5_MoeForCausalLM",
        "ernie4_5_moe",
        "ERNIE 4.5 (experts)",
        "ernie",
        Family(ernie4_5_moe, head=Head.TIED_BY_DEFAULT, experts_block=_ERNIE_BLOCK),
    ),
    Architecture("Exaone4ForCausalLM", "exaone4", "EXAONE 4", "exaone", Family(exaone4)),
    Architecture("Olmo3ForCausalLM", "olmo3", "OLMo 3", "olmo", Family(olmo3)),
    Architecture("GraniteForCausalLM", "granite", "Granite 3", "granite", Family(llama)),
    Architecture("Phi3ForCausalLM", "phi3", "Phi-3 and Phi-4", "phi3", Family(phi3)),
    Architecture(
        "HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", "Hunyuan", "hunyuan", Family(hunyuan)
    ),
    Architecture(
        "HunYuanMoEV1ForCausalLM",
        "hunyuan_v1_moe",
        "Hunyuan (experts)",
        "hunyuan",
        Family(hunyuan_moe, experts_block=ExpertsBlock(router="gate.wg", shared="shared_mlp")),
    ),
    Architecture(
        "MixtralForCausalLM",
        "mixtral",
        "Mixtral",
        "mixtral",
        Family(mixtral, experts_block=_MIXTRAL_BLOCK),
    ),
    Architecture(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        "Qwen2-MoE",
        "qwen_moe",
        Family(qwen2_moe, experts_block=ExpertsBlock(shared="shared_expert")),
    ),
    Architecture("Qwen3MoeForCausalLM", "qwen3_moe", "Qwen3-MoE", "qwen_moe", Family(qwen3_moe)),
    # Its config.json does not mention the MTP layer of its checkpoints.
    Architecture(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        "Qwen3-Next",
        "hybrid.qwen_next",
        Family(
            qwen3_next,
            experts_block=ExpertsBlock(shared="shared_expert"),
            mtp=MtpLayers(default=1, prefix="mtp."),
        ),
        silu_alone=True,
    ),
    Architecture(
        "Qwen3_5ForCausalLM",
        "qwen3_5_text",
        "Qwen3.5",
        "hybrid.qwen_next",
        Family(qwen3_5, mtp=_QWEN35_MTP),
        silu_alone=True,
    ),
    Architecture(
        "Qwen3_5MoeForCausalLM",
        "qwen3_5_moe_text",
        "Qwen3.5 (experts)",
        "hybrid.qwen_next",
        Family(
            qwen3_5_moe,
            experts_block=_QWEN35_BLOCK,
            mtp=_QWEN35_MTP,
        ),
        silu_alone=True,
    ),
    Architecture(
        "Lfm2ForCausalLM",
        "lfm2",
        "LFM2",
        "hybrid.lfm2",
        Family(
            lfm2,
            head=Head.TIED_BY_DEFAULT,
            fields=lfm2_fields,
            stored=StoredNames(names=lfm2_names),
        ),
    ),
    Architecture(
        "Lfm2MoeForCausalLM",
        "lfm2_moe",
        "LFM2 (experts)",
        "hybrid.lfm2",
        Family(
            lfm2_moe,
            head=Head.TIED_BY_DEFAULT,
            fields=lfm2_fields,
            stored=StoredNames(names=lfm2_names),
        ),
    ),
    Architecture(
        "GraniteMoeHybridForCausalLM",
        "granitemoehybrid",
        "Granite 4",
        "granite",
        Family(
            granite_hybrid,
            experts_block=_GRANITE_BLOCK,
            stored=StoredNames(names=granite_hybrid_names),
        ),
        silu_alone=True,
    ),
    Architecture(
        "NemotronHForCausalLM",
        "nemotron_h",
        "Nemotron-H",
        "hybrid.nemotron_h",
        Family(
            nemotron_h,
            activation=ActivationField("mlp_hidden_act"),
            fields=nemotron_h_fields,
            head=Head.NEVER_TIED,
            stored=StoredNames(
                names=nemotron_h_names, modules=(("model.layers", "backbone.layers"),)
            ),
        ),
    ),
    Architecture(
        "KimiLinearForCausalLM",
        "kimi_linear",
        "Kimi Linear",
        "hybrid.kimi_linear",
        Family(
            kimi_linear,
            fields=kimi_linear_fields,
            head=Head.NEVER_TIED,
            stored=StoredNames(
                names=kimi_linear_names, modules=(("self_attn.forget_gate", "self_attn"),)
            ),
        ),
        silu_alone=True,
    ),
    Architecture(
        "Gemma2ForCausalLM",
        "gemma2",
        "Gemma 2",
        "gemma",
        Family(gemma2, head=Head.TIED_BY_DEFAULT, activation=_GEMMA_ACTIVATION),
    ),
    Architecture(
        "Gemma3ForCausalLM",
        "gemma3_text",
        "Gemma 3",
        "gemma",
        Family(gemma3, head=Head.TIED_BY_DEFAULT, activation=_GEMMA_ACTIVATION),
    ),
    Architecture(
        "Gemma4ForCausalLM",
        "gemma4_text",
        "Gemma 4",
        "gemma4",
        Family(
            gemma4,
            head=Head.TIED_BY_DEFAULT,
            experts_block=_GEMMA4_BLOCK,
            activation=_GEMMA_ACTIVATION,
            stored=StoredNames(names=gemma4_names),
        ),
    ),
    Architecture(
        "Llama4ForCausalLM",
        "llama4_text",
        "Llama 4",
        "llama4",
        Family(llama4, experts_block=_LLAMA4_BLOCK, stored=StoredNames(turned_experts=True)),
    ),
    Architecture(
        "DeepseekV2ForCausalLM", "deepseek_v2", "DeepSeek V2", "deepseek", Family(deepseek_v2)
    ),
    Architecture(
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        "DeepSeek V3, R1 and Kimi-K2",
        "deepseek",
        Family(deepseek_v3),
    ),
    Architecture(
        "DeepseekV32ForCausalLM", "deepseek_v32", "DeepSeek V3.2", "deepseek", Family(deepseek_v32)
    ),
    Architecture(
        "DeepseekV4ForCausalLM",
        "deepseek_v4",
        "DeepSeek V4",
        "deepseek_v4",
        Family(deepseek_v4, fields=deepseek_v4_fields, stored=StoredNames(names=deepseek_v4_names)),
        written_by=("fp8",),
        silu_alone=True,
        mtp_lacking=_V4_MTP,
    ),
)
ARCHITECTURES: dict[str, Architecture] = {row.name: row for row in _ROWS}
# The rows of all models with a family here, and of all that serve requests.
_WITH_FAMILY: dict[str, Architecture] = ARCHITECTURES | ENCODERS
SERVED: dict[str, Architecture] = _WITH_FAMILY | FALLBACKS
# Models that only draft for another: their embedding is the target's, their head a smaller one.
DRAFT_FAMILIES: dict[str, Family] = {
    "LlamaForCausalLMEagle3": Family(
        eagle3, head=Head.TIED_BY_DEFAULT, draft=DraftHead("draft_vocab_size", joined_states=3)
    ),
}
# The missing features of requested architectures, and what is not known of them.
LACKING: dict[str, str] = {
    "KimiK3ForConditionalGeneration": (
        "transformers has no class of it; its authors' code alone defines the activation situ "
        "(activation_situ_beta), experts over a narrower state (routed_expert_hidden_size), "
        "residuals over earlier layers and gates with a lower bound (gate_lower_bound)"
    ),
    "DeepseekV41ForCausalLM": (
        "transformers has no class of it; its authors' code alone defines its tables of engrams, "
        "layers that use the entries of others (kv_source_layers, index_source_layers) and "
        "candidates of spans (candidate_topk_blocks)"
    ),
}


def families() -> dict[str, Family]:
    """Return the readers of every architecture that has a family here, by its name."""
    return {name: row.family for name, row in _WITH_FAMILY.items()}


def of_model_type(model_type: str) -> str | None:
    """Return the name of the architecture of a config.json's model_type; None if none has it."""
    return next((row.name for row in SERVED.values() if row.model_type == model_type), None)


def nearest_with_family(name: str, config: Config) -> str:
    """Describe the most similar architecture that has a family here, "" if none is similar."""
    return str(nearest(name, config, families()) or "")


def family_of(config: Config) -> tuple[str, Family]:
    """Return the architecture and family of a config.json; raises ModelFactsError or
    UnknownFamilyError."""
    value = config.get("architectures")
    readable = {name: row.family for name, row in SERVED.items()} | DRAFT_FAMILIES
    known = ", ".join(readable)
    if not isinstance(value, (list, tuple)) or len(value) != 1:
        raise ModelFactsError(
            f"config.json: architectures must be a list of one name, got {value!r}; known: {known}",
            field="architectures",
        )
    name = str(value[0])
    if name not in readable:
        raise UnknownFamilyError(name, known, nearest_with_family(name, config))
    return name, readable[name]
