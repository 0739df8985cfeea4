"""The classes of transformers that have no family here, and the one rule by which all are read.

transformers' own class computes such a model (`atom.models.decoder.fallback`): its matrices, norms
and positions. The engine's kernels attend, over the paged KV cache. So a config.json gives the
shape of the cache alone, and a bound of the weights, which the engine replaces by the class's own
count. `FALLBACKS` has the classes that a test has proven against transformers' tokens. Pure.
"""

from __future__ import annotations

from msgspec import structs

from atom.sizing.attention.kinds import NO_ROPE
from atom.sizing.config_fields import Config, flag, positive
from atom.sizing.families.reading import Architecture, Family, Head, grouped
from atom.sizing.layers import FallbackFacts, LayerFacts, MlpFacts

MODULE = "fallback"
# Usual names of fields, by the names that older classes have for them.
_RENAMED = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "n_inner": "intermediate_size",
    "ffn_dim": "intermediate_size",
    "dff": "intermediate_size",
}
# A class whose config.json has one of these keys rotates heads and has no table of positions.
_ROTATING = ("rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor")
_NORMS = 8  # vectors of the hidden size in a layer, at most: four norms, each with a bias


def fallback_fields(config: Config) -> Config:
    """Return a config.json under the usual names of fields."""
    found = {_RENAMED.get(key, key): value for key, value in config.items()}
    if found.get("intermediate_size") is None:
        found["intermediate_size"] = 4 * positive(found, "hidden_size")
    if flag(found, "multi_query"):
        found["num_key_value_heads"] = 1
    return found


def fallback_layer(config: Config, index: int) -> LayerFacts:
    """Read a layer by its cache: all tokens are kept, whatever the layer attends to."""
    return LayerFacts(
        attention=structs.replace(grouped(config), rope=NO_ROPE),
        mlp=MlpFacts(intermediate_size=positive(config, "intermediate_size")),
        norms=_NORMS,
    )


def fallback_bound(config: Config) -> FallbackFacts:
    """Bound the elements of weights from above: a gated MLP, a head of its own, biases and norms
    everywhere."""
    hidden, vocabulary = positive(config, "hidden_size"), positive(config, "vocab_size")
    inner, heads = positive(config, "intermediate_size"), grouped(config).heads
    joined = (2 * heads.count + 2 * heads.kv_count) * heads.size
    layer = (joined + 3 * inner) * (hidden + 1) + (2 + _NORMS) * hidden
    layers = positive(config, "num_hidden_layers")
    rows, buffer_bytes = 2 * vocabulary, 8 * heads.size * (layers + 1)  # of frequencies
    if not any(config.get(key) for key in _ROTATING):
        positions = positive(config, "max_position_embeddings")
        rows += positions + 2
        buffer_bytes += positions**2  # of a mask, which GPT's first classes hold
    elements = rows * hidden + vocabulary + layers * layer + 2 * hidden
    return FallbackFacts(elements=elements, buffer_bytes=buffer_bytes)


_FAMILY = Family(
    fallback_layer, head=Head.TIED_BY_DEFAULT, fields=fallback_fields, fallback=fallback_bound
)


def _row(name: str, model_type: str, label: str) -> Architecture:
    return Architecture(name, model_type, label, MODULE, _FAMILY)


_ROWS = (
    _row("ArceeForCausalLM", "arcee", "Arcee (AFM)"),
    _row("ApertusForCausalLM", "apertus", "Apertus"),
    _row("BioGptForCausalLM", "biogpt", "BioGPT"),
    _row("BitNetForCausalLM", "bitnet", "BitNet (plain weights)"),
    _row("CohereForCausalLM", "cohere", "Command R"),
    _row("Cohere2ForCausalLM", "cohere2", "Command R7B and A"),
    _row("CTRLLMHeadModel", "ctrl", "CTRL"),
    _row("CwmForCausalLM", "cwm", "Code World Model"),
    _row("Emu3ForCausalLM", "emu3_text_model", "Emu3 (text)"),
    _row("GemmaForCausalLM", "gemma", "Gemma"),
    _row("GlmForCausalLM", "glm", "GLM-4"),
    _row("Glm4ForCausalLM", "glm4", "GLM-4-0414"),
    _row("GPT2LMHeadModel", "gpt2", "GPT-2"),
    _row("GPTBigCodeForCausalLM", "gpt_bigcode", "StarCoder"),
    _row("GPTNeoXForCausalLM", "gpt_neox", "GPT-NeoX and Pythia"),
    _row("HeliumForCausalLM", "helium", "Helium"),
    _row("HyperCLOVAXForCausalLM", "hyperclovax", "HyperCLOVA X"),
    _row("Jais2ForCausalLM", "jais2", "Jais 2"),
    _row("MinistralForCausalLM", "ministral", "Ministral"),
    _row("Ministral3ForCausalLM", "ministral3", "Ministral 3"),
    _row("ModernBertDecoderForCausalLM", "modernbert-decoder", "ModernBERT (decoder)"),
    _row("MoshiForCausalLM", "moshi", "Moshi (text)"),
    _row("NanoChatForCausalLM", "nanochat", "nanochat"),
    _row("NemotronForCausalLM", "nemotron", "Nemotron"),
    _row("OlmoForCausalLM", "olmo", "OLMo"),
    _row("Olmo2ForCausalLM", "olmo2", "OLMo 2"),
    _row("OPTForCausalLM", "opt", "OPT"),
    _row("PersimmonForCausalLM", "persimmon", "Persimmon"),
    _row("PhiForCausalLM", "phi", "Phi-1 and Phi-2"),
    _row("StableLmForCausalLM", "stablelm", "StableLM"),
    _row("Starcoder2ForCausalLM", "starcoder2", "StarCoder2"),
    _row("VaultGemmaForCausalLM", "vaultgemma", "VaultGemma"),
)
FALLBACKS: dict[str, Architecture] = {row.name: row for row in _ROWS}
