"""Mixtures of experts: the router, and both products of the chosen experts (w13, then w2).

Which kernel computes which shapes (T tokens, k experts a token of E; `norm_experts.py` and
`grouped_gemm.py` decide)

- T = 1, or 4 T k <= E, so that hardly two tokens share an expert: low-batch GEMV, `gemv.py`. Norm
  and router's logits are one launch (`norm_router.py`), then w13 with the choice in it, then w2
  with the weighted sum. Plain, 8-bit and MXFP4 weights; a shared expert runs in the same launches.
- T up to 16: norm and router in one launch, then grouped GEMM.
- More: `routing.py` (logits by split K, then the choice), then grouped GEMM (`grouped_gemm.py`):
  each program searches for its pairs of a token and an expert below 64 tokens; they are sorted by
  expert from 64 on (`sort_by_expert.py`).
- Many rows an expert (128; 256 of interleaved MXFP4): quantised stacks except fp8 are dequantised
  first.

Layout. w13 is gate_up_proj [E, 2 N, K], gate_proj's rows before up_proj's; w2 is down_proj [E, N,
K]. A tile alternates rows of w1 and of w3 (`w13_tiles.py`), so that one thread has both sums
of a row. MXFP4 stacks on NVIDIA's cards are interleaved by eight rows (pre-shuffled,
`mxfp4_layout.py`): a warp copies contiguous pieces of 512 bytes. Results of w2 are [k, T,
H] float32, weighted; the next norm adds them up.

Tile and split. Grouped: BLOCK_M pairs of one expert by BLOCK_N rows (`grouped_tiles.py`, by rows
an expert on average); the grid bounds the number of tiles without reading the counts, so a
captured graph serves any routing. GEMV: a program has 4 to 16 rows of one expert and multiplies
without the tensor core, whose tile would be 15/16 padding; w2's programs process all experts
of their token.

What bounds it. Low batch: reading the experts' matrices and the number of launches. Some rows an
expert: memory, and for 4 bits dequantising; `nvidia/` multiplies MXFP4 as fp8 with activations of
two fp8 terms (hi/lo). Beyond: the tensor cores.

Measured (one H200, us a layer): qwen3-30b-a3b T = 1 27.1 (35.0 before by single kernels),
gpt-oss-20b T = 1 39.3 (65.6); gpt-oss-20b both products at 8, 64, 256 tokens 108, 156, 280. The
rest, and the failed attempts: docs/kernels/moe.md.
"""
