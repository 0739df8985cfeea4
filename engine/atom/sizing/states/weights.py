"""The weights of layers that keep a state: matrices by name, and the other parameters.

Names are those below `linear_attn.`, whatever a checkpoint calls the module (checkpoint_names.py).
weights.py counts their bytes. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from atom.sizing.projection import Projection, Split, fused_projections
from atom.sizing.states.shapes import StateKind, StateNet


def state_projections(net: StateNet, hidden: int) -> Iterator[Projection]:
    """Yield every matrix of a layer with a state, the output's last."""
    if net.kind is StateKind.KIMI_DELTA:
        yield from _kimi_delta(net, hidden)
    elif net.kind is StateKind.MAMBA2:
        yield from _mamba2(net, hidden)
    elif net.kind is StateKind.SHORT_CONV:
        yield from _short_conv(net, hidden)
    else:
        yield from _delta_net(net, hidden)


def state_vectors(net: StateNet, ranks: int) -> int:
    """Count a rank's elements outside matrices, in the model's element type: the convolution, and
    the norm of the output."""
    own = net.on_rank(ranks)
    taps = own.conv_channels * (own.conv_width + (1 if net.conv_bias else 0))
    if net.kind is StateKind.SHORT_CONV:
        return taps
    return taps + own.value_dim * (own.value_heads if net.kind is StateKind.MAMBA2 else 1)


def state_floats(net: StateNet, ranks: int) -> int:
    """Count the elements on a rank that are kept in float32: how fast each head forgets, of Mamba-2
    how much of a value goes past the state, too."""
    each = {StateKind.SHORT_CONV: 0, StateKind.MAMBA2: 3, StateKind.KIMI_DELTA: 1 + net.key_dim}
    return net.on_rank(ranks).value_heads * each.get(net.kind, 2)


def _outputs(name: str, rows: int, hidden: int, unit: int) -> Projection:
    return Projection(
        name=f"linear_attn.{name}", rows=rows, columns=hidden, split=Split.OUTPUTS, unit=unit
    )


def _inputs(name: str, columns: int, hidden: int, unit: int) -> Projection:
    return Projection(
        name=f"linear_attn.{name}", rows=hidden, columns=columns, split=Split.INPUTS, unit=unit
    )


def _in_one(net: StateNet, matrices: Sequence[Projection]) -> Iterator[Projection]:
    """Yield the parts of a checkpoint's one matrix, in their order."""
    biased = [replace(matrix, bias=net.bias) for matrix in matrices]
    return fused_projections("linear_attn.in_proj", biased)


def _delta_net(net: StateNet, hidden: int) -> Iterator[Projection]:
    """Yield a gated delta net's matrices: queries, keys, values and gates of these, how much each
    value head learns and forgets, and the output. unit: a key head's, and the value heads' that it
    serves."""
    each, values = net.heads_per_key, net.heads_per_key * net.value_dim
    joined = (("in_proj_qkvz", 2 * (net.key_dim + values)), ("in_proj_ba", 2 * each))
    apart = (
        ("in_proj_qkv", 2 * net.key_dim + values),
        ("in_proj_z", values),
        ("in_proj_b", each),
        ("in_proj_a", each),
    )
    for name, unit in joined if net.kind is StateKind.DELTA_NET_BY_KEY_HEAD else apart:
        yield _outputs(name, net.key_heads * unit, hidden, unit)
    yield _inputs("out_proj", net.value_heads * net.value_dim, hidden, values)


def _kimi_delta(net: StateNet, hidden: int) -> Iterator[Projection]:
    """Yield the matrices of queries, keys and values; the low-rank matrices of decay and of gates;
    the matrix of the learning rate; and the output."""
    heads, keys, values = net.value_heads, net.key_dim, net.value_dim
    for name, unit in (("q_proj", keys), ("k_proj", keys), ("v_proj", values)):
        yield _outputs(name, heads * unit, hidden, unit)
    for gate, inner, unit in (("f", keys, keys), ("g", values, values)):
        whole = _outputs(f"{gate}_a_proj", inner, hidden, inner)
        yield replace(whole, split=Split.NOTHING, unit=1)
        yield _outputs(f"{gate}_b_proj", heads * unit, inner, unit)
    yield _outputs("b_proj", heads, hidden, 1)
    yield _inputs("o_proj", heads * values, hidden, values)


def _mamba2(net: StateNet, hidden: int) -> Iterator[Projection]:
    """Yield the parts of Mamba-2's one matrix, in its order, and the output's."""
    values, keys = net.value_heads * net.value_dim, net.key_heads * net.key_dim
    parts = (
        ("gate", values, net.value_dim),
        ("values", values, net.value_dim),
        ("keys", keys, net.key_dim),
        ("queries", keys, net.key_dim),
        ("steps", net.value_heads, 1),
    )
    matrices = [_outputs(f"in_proj.{name}", size, hidden, unit) for name, size, unit in parts]
    yield from _in_one(net, matrices)
    yield replace(_inputs("out_proj", values, hidden, net.value_dim), bias=net.bias)


def _short_conv(net: StateNet, hidden: int) -> Iterator[Projection]:
    """Yield the parts of the matrix that holds the input gates, the output gates and the values;
    then the output."""
    channels, names = net.value_heads, ("gate_in", "gate_out", "values")
    yield from _in_one(net, [_outputs(f"in_proj.{name}", channels, hidden, 1) for name in names])
    yield replace(_inputs("out_proj", channels, hidden, 1), bias=net.bias)
