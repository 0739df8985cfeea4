"""The weights of attention to a window and to entries: matrices by name, and the other parameters.

Names are those of transformers below a layer, whatever a checkpoint calls them
(families/deepseek_v4.py). weights.py counts their bytes. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from atom.sizing.attention.compressed import Compressed
from atom.sizing.projection import Projection, Split


def compressed_projections(
    net: Compressed, heads: int, head_dim: int, hidden: int
) -> Iterator[Projection]:
    """Yield every matrix of a layer. The first of the output's has a block of each group of heads
    alone, which no other product has, and so is kept in the model's own type."""

    def whole(name: str, rows: int, columns: int) -> Projection:
        return Projection(name=f"self_attn.{name}", rows=rows, columns=columns, split=Split.NOTHING)

    yield whole("q_a_proj", net.query_rank, hidden)
    queries = whole("q_b_proj", heads * head_dim, net.query_rank)
    yield replace(queries, split=Split.OUTPUTS, unit=head_dim)
    yield whole("kv_proj", head_dim, hidden)
    joined, rank = net.output_groups * net.output_rank, net.output_rank
    groups = whole("o_a_proj", joined, heads * head_dim // net.output_groups)
    yield replace(groups, split=Split.OUTPUTS, unit=rank, absorbed=True)
    yield replace(whole("o_b_proj", hidden, joined), split=Split.INPUTS, unit=rank)
    if not net.rate:
        return
    for name in ("kv_proj", "gate_proj"):
        yield _plain(whole(f"compressor.{name}", net.series * head_dim, hidden))
    if net.index is None:
        return
    for name in ("kv_proj", "gate_proj"):
        yield _plain(whole(f"compressor.indexer.{name}", net.series * net.index.dim, hidden))
    asking = net.index.heads * net.index.dim
    yield whole("compressor.indexer.q_b_proj", asking, net.query_rank)
    yield _plain(whole("compressor.indexer.scorer.weights_proj", net.index.heads, hidden))


def compressed_vectors(net: Compressed, head_dim: int) -> int:
    """Count the elements of norms, in the model's element type."""
    count = net.query_rank + head_dim
    return count + net.entry_elements(head_dim)


def compressed_floats(net: Compressed, head_dim: int) -> int:
    """Count the elements on every rank that are kept in float32: how much each place of an entry
    counts."""
    return net.rate * net.series * net.entry_elements(head_dim)


def stream_floats(streams: int, hidden: int) -> int:
    """Count the float32 elements of a layer's two hyper-connections between so many residual
    streams (arXiv 2512.24880); 0 for a single stream."""
    if not streams:
        return 0
    weights = streams * (streams + 2)
    return 2 * (weights * (streams * hidden + 1) + 3)


def stream_head_floats(streams: int, hidden: int) -> int:
    """Count the float32 elements of the parameters that join the streams after the last layer."""
    return streams * (streams * hidden + 1) + 1 if streams else 0


def _plain(matrix: Projection) -> Projection:
    """Mark a matrix as stored in the model's own type in every checkpoint."""
    return replace(matrix, quantizable=False)
