"""The block of a layer that keeps a state, selected by the kind in its checkpoint."""

from __future__ import annotations

from atom.model_ops.linear import Build
from atom.models.decoder.delta_net import GatedDeltaNet
from atom.models.decoder.kimi_delta import KimiDeltaAttention
from atom.models.decoder.mamba2 import Mamba2Mixer
from atom.models.decoder.short_conv import GatedShortConv
from atom.models.decoder.spec import LayerSpec
from atom.sizing.attention.kinds import StateAttention
from atom.sizing.states import StateKind

StateBlock = GatedDeltaNet | GatedShortConv | KimiDeltaAttention | Mamba2Mixer
_BLOCKS: dict[StateKind, type[StateBlock]] = {
    StateKind.KIMI_DELTA: KimiDeltaAttention,
    StateKind.MAMBA2: Mamba2Mixer,
    StateKind.SHORT_CONV: GatedShortConv,
}


def state_block(spec: LayerSpec, build: Build) -> StateBlock:
    """Build the block of the layer's kind of state."""
    attention = spec.facts.attention
    assert isinstance(attention, StateAttention)
    return _BLOCKS.get(attention.net.kind, GatedDeltaNet)(spec, build)
