"""Ragged attention of prompts whose keys lie one behind the other."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from tests.support.fake_aiter.checks import HALF, Checks
from tests.support.fake_aiter.softmax_attention import attend


def _starts(checks: Checks, name: str, starts: torch.Tensor, total: int, longest: int) -> list[int]:
    checks.tensor(name, starts, [torch.int32], (None,), strided=True)
    ends = starts.tolist()
    checks.that(ends[0] == 0 and ends[-1] == total, f"{name} does not cover {total} tokens: {ends}")
    lengths = [end - start for start, end in itertools.pairwise(ends)]
    checks.that(max(lengths) <= longest, f"{name}: a row is longer than {longest}")
    return ends


def _varlen(
    checks: Checks,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    min_seqlen_q: int,
    dropout_p: float,
    softmax_scale: float | None,
    logits_soft_cap: float,
    causal: bool,
    window_size: tuple[int, int, int],
    sink_ptr: torch.Tensor | None,
    **rest: Any,
) -> torch.Tensor:
    checks.on("gfx942", "gfx950")
    for name, x in (("q", q), ("k", k), ("v", v)):
        checks.tensor(name, x, [q.dtype] if q.dtype in HALF else HALF, (None, None, None))
    checks.that(k.shape[1] == v.shape[1] and q.shape[1] % k.shape[1] == 0, "groups of heads")
    checks.that(q.shape[2] == k.shape[2] and q.shape[2] % 8 == 0 and q.shape[2] <= 256, "head size")
    checks.that(len(k) == len(v), "as many values as keys")
    checks.that(causal and dropout_p == 0.0 and logits_soft_cap == 0.0, "not modelled")
    checks.that(len(window_size) == 3 and window_size[2] == 0, "window_size is left, right, sink")
    left, right = window_size[0], window_size[1]
    checks.that(left == -1 or left >= 0, f"window_size {window_size}")
    checks.that(right in (-1, 0), "the window reaches into the future")
    checks.that(rest.get("block_table") is None and rest.get("bias") is None, "not modelled")
    if sink_ptr is not None:
        checks.tensor("sink_ptr", sink_ptr, [torch.float32], (q.shape[1],))
    queries = _starts(checks, "cu_seqlens_q", cu_seqlens_q, len(q), max_seqlen_q)
    keys = _starts(checks, "cu_seqlens_k", cu_seqlens_k, len(k), max_seqlen_k)
    checks.that(len(queries) == len(keys), "as many rows of keys as of queries")
    scale = q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    out = torch.empty((len(q), q.shape[1], v.shape[2]), dtype=q.dtype)
    spans = zip(queries, queries[1:], keys, keys[1:], strict=False)
    for first, end, first_key, end_key in spans:
        checks.that(end_key - first_key >= end - first, "more queries than keys in a row")
        out[first:end] = attend(
            q[first:end], k[first_key:end_key], v[first_key:end_key], scale,
            window=left + 1, sinks=sink_ptr,
        ).to(q.dtype)  # fmt: skip
    return out


RESULTS = {"flash_attn_varlen_func": _varlen}
