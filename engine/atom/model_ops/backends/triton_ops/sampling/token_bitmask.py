# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Structured output's mask on the logits: one program per chunk of a guided row.

It only writes: allowed tokens are not touched, and rows without a mask are not read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_CHUNK = 4096


@triton.jit(do_not_specialize=["vocab", "words"])
def _token_mask_kernel(logits_ptr, rows_ptr, bits_ptr, vocab, words, CHUNK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + index)
    token = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    inside = token < vocab
    # Allowed if there is no word: the padding beyond the grammar's vocabulary is not touched.
    word = tl.load(bits_ptr + index * words + token // 32, mask=inside, other=-1)
    forbidden = ((word >> (token % 32)) & 1) == 0
    tl.store(logits_ptr + row * vocab + token, float("-inf"), mask=inside & forbidden)


def apply_token_mask(logits: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor) -> None:
    vocab = logits.shape[1]
    _token_mask_kernel[(rows.shape[0], triton.cdiv(vocab, _CHUNK))](
        logits, rows, bits, vocab, bits.shape[1], CHUNK=_CHUNK, num_warps=4
    )
