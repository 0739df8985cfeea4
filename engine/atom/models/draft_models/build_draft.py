"""Build the draft model of a model: an EAGLE-3 checkpoint, a whole model, or the own MTP layer."""

from __future__ import annotations

from dataclasses import replace

from safetensors import safe_open

from atom.checkpoint import Checkpoint
from atom.config import Config, ModelConfig
from atom.errors import ModelError
from atom.model_ops.linear import Build
from atom.models.decoder.causal_lm import CausalLM, Decoder
from atom.models.decoder.placed_modules import PlacedModules, placed_model
from atom.models.decoder.spec import ModelSpec
from atom.models.decoder.spec.decoder_spec import decoder_spec
from atom.models.draft_models.draft_model import DraftModel
from atom.models.draft_models.eagle3 import Eagle3Draft
from atom.models.draft_models.mtp import MimoMtpDraft, MtpDraft, QwenMtpDraft
from atom.models.draft_models.whole_model import WholeModelDraft
from atom.models.registry import build_model, model_spec
from atom.sizing.architectures import DRAFT_FAMILIES
from atom.sizing.drafting import default_aux_layers

_AUX_LAYERS = 3
# By how names of the layer begin in the model's checkpoint.
_MTP_DRAFTS = {"": MtpDraft, "mtp.": QwenMtpDraft, "model.mtp.": MimoMtpDraft}


def drafted_spec(config: Config) -> tuple[ModelSpec, ModelSpec | None]:
    """Return the model's spec, with auxiliary layers if the draft model sees any, and the spec of a
    separate draft checkpoint, if there is one."""
    spec = model_spec(config.model)
    if config.draft is None:
        drafts = config.speculative is not None and config.speculative.by_layers
        if drafts and _MTP_DRAFTS[spec.mtp_prefix].sees_stream:
            spec = replace(spec, aux_layers=(len(spec.layers),))
        return spec, None
    if config.draft.architecture not in DRAFT_FAMILIES:
        return spec, model_spec(config.draft)
    layers = _aux_layers(config.draft, len(spec.layers))
    return replace(spec, aux_layers=layers), decoder_spec(config.draft)


def build_draft(
    spec: ModelSpec, draft: ModelSpec | None, model: CausalLM, build: Build
) -> DraftModel:
    """Build the draft model: of its own checkpoint, which sees the model's auxiliary hidden states
    or is a whole model, or of the model's MTP layer."""
    if draft is None:
        return _MTP_DRAFTS[spec.mtp_prefix](spec, model, build)
    if not spec.aux_layers:
        return WholeModelDraft(build_model(draft, build), spec.vocab_size)
    assert isinstance(model.model, Decoder), "nothing else drafts"
    return Eagle3Draft(draft, spec, model.model.embed_tokens, build)


def placed_with_mtp(model: CausalLM, mtp: DraftModel) -> PlacedModules:
    """Collect a model's modules, and those of the MTP layer in the same checkpoint."""
    modules = *model.named_modules(), *mtp.placed_modules(frozenset())
    return PlacedModules(modules, mtp.unused_tensors())


def placed_draft(draft: DraftModel, checkpoint: Checkpoint) -> PlacedModules:
    """Collect the modules of a checkpoint that only drafts."""
    if isinstance(draft, WholeModelDraft):  # of any form of checkpoint
        return placed_model(draft.causal_lm)
    names: set[str] = set()
    for file in checkpoint.weight_files():
        with safe_open(file, framework="pt") as shard:
            names.update(shard.keys())
    return PlacedModules(tuple(draft.placed_modules(frozenset(names))), draft.unused_tensors())


def _aux_layers(draft: ModelConfig, num_layers: int) -> tuple[int, ...]:
    """Return the layers whose inputs the draft model sees. `eagle_config` names layers by their
    outputs (as SGLang reads it), a field at the top by their inputs (as vLLM does)."""
    raw = draft.hf_config
    by_output = (raw.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    by_input = raw.get("eagle_aux_hidden_state_layer_ids")
    found = tuple(by_input or ()) or tuple(layer + 1 for layer in by_output or ())
    layers = found or default_aux_layers(num_layers)
    if len(set(layers)) != _AUX_LAYERS or not all(0 <= layer < num_layers for layer in layers):
        raise ModelError(
            f"{draft.path / 'config.json'}: eagle_aux_hidden_state_layer_ids are to name "
            f"{_AUX_LAYERS} different layers of the model's {num_layers}, got {list(found)}"
        )
    return layers
