"""DeepSeek V4: a window of 128 tokens beside entries that each sum up 4 or 128 tokens; one key of
512 elements for all heads, so every device caches the same. Experts in MXFP4, other matrices in fp8
by blocks; whatever makes entries, and the first of the output's two matrices, in bfloat16."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.catalogue.case import Case, fp8

_VOCABULARY, _HEAD, _RANK = 129_280, 512, 1024
_INDEX_HEADS, _INDEX = 64, 128
_GROUPS = 31  # of layers with windows, one block each
_TABLES = 3 * 8 * 6 * _VOCABULARY  # three layers, six experts of a token, 8 bytes each


def mxfp4(rows: int, columns: int) -> int:
    """Half a byte per element, and a byte for 32 elements."""
    return rows * columns // 2 + rows * columns // 32


@dataclass(frozen=True)
class _V4:
    """hidden: elements of a state; heads; queries: their rank; groups: of heads; experts, each of
    `width`; windows, sparse, heavy: layers without entries, with entries of 4 tokens, of 128."""

    hidden: int
    heads: int
    queries: int
    groups: int
    experts: int
    width: int
    windows: int
    sparse: int
    heavy: int

    def attention(self, ranks: int) -> int:
        """Queries, key and output of a layer; its sinks and two norms."""
        own, grouped = self.heads // ranks * _HEAD, self.groups // ranks * _RANK
        return (
            fp8(self.queries, self.hidden)
            + fp8(own, self.queries)
            + fp8(_HEAD, self.hidden)
            + 2 * grouped * (self.heads // self.groups * _HEAD)
            + fp8(self.hidden, grouped)
            + 2 * (self.heads // ranks + self.queries + _HEAD)
        )

    def entries(self, tokens: int, series: int, size: int) -> int:
        """Contributions and their weights, the share of each place, and the norm."""
        projections = 2 * 2 * series * size * self.hidden
        return projections + 4 * tokens * series * size + 2 * size

    def indexer(self) -> int:
        """Its queries, and the weight of each of its heads; its own entries."""
        asking = fp8(_INDEX_HEADS * _INDEX, self.queries) + 2 * _INDEX_HEADS * self.hidden
        return asking + self.entries(4, 2, _INDEX)

    def mlp(self, ranks: int) -> int:
        """Experts, the shared one, and the router."""
        own = self.width // ranks
        return (
            self.experts * (2 * mxfp4(own, self.hidden) + mxfp4(self.hidden, own))
            + 2 * fp8(own, self.hidden)
            + fp8(self.hidden, own)
            + 2 * self.experts * self.hidden
        )

    def weights(self, ranks: int) -> int:
        """Three layers select experts by a table of all tokens, the others by a correction."""
        layers = self.windows + self.sparse + self.heavy
        # Of a layer two connections of four streams: 16 mixed, 4 in and 4 out, and three scales.
        streams = 4 * 2 * (24 * (4 * self.hidden + 1) + 3)
        joining = 4 * (4 * (4 * self.hidden + 1) + 1)
        return (
            2 * (2 * _VOCABULARY // ranks * self.hidden + self.hidden)
            + layers * (self.attention(ranks) + 2 * 2 * self.hidden + self.mlp(ranks) + streams)
            + self.sparse * (self.entries(4, 2, _HEAD) + self.indexer())
            + self.heavy * self.entries(128, 1, _HEAD)
            + _TABLES
            + (layers - 3) * 4 * self.experts
            + joining
        )

    def case(self) -> Case:
        """In a block of 16 tokens, four entries of 512 + 128 elements or one of 512. In a window of
        each token the key, and what it adds to two entries or to one, with its weight."""
        sparse, heavy = (4 * (_HEAD + _INDEX)) * 2 // 16, _HEAD * 2 // 16
        window = (
            self.windows * _HEAD
            + self.sparse * (_HEAD + 4 * (_HEAD + _INDEX))
            + self.heavy * 3 * _HEAD
        )
        token = self.sparse * sparse + self.heavy * heavy
        return Case(
            weights={ranks: self.weights(ranks) for ranks in (1, 8)},
            kv_token={1: token, 8: token},
            window={1: 2 * window, 8: 2 * window},
            window_tokens=128,
            padding_bytes=_GROUPS * token - 2 * window,
            tables_bytes=_TABLES,
        )


_FLASH = _V4(
    hidden=4096, heads=64, queries=1024, groups=8, experts=256, width=2048,
    windows=2, sparse=21, heavy=20,
)  # fmt: skip
_PRO = _V4(
    hidden=7168, heads=128, queries=1536, groups=16, experts=384, width=3072,
    windows=0, sparse=30, heavy=31,
)  # fmt: skip
ENTRIES: dict[str, Case] = {
    "hf://deepseek-ai/DeepSeek-V4-Flash": _FLASH.case(),
    "hf://deepseek-ai/DeepSeek-V4-Pro": _PRO.case(),
}
