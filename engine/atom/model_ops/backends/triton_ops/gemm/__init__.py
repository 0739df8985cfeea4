"""GEMM and GEMV: activations [T, K] by a matrix [N, K] of any weight format.

Which kernel computes which shapes (`linear.py` decides; T: tokens of the step)

- bf16, fp16, fp32: T = 1 after a norm goes to `norm_linear.py` (norm and product in one launch);
  T up to 256 to `skinny_linear.py` or `split_k_linear.py`, if `choose.py` predicts a tile that
  beats the library; all else to the vendor's library (cuBLAS, hipBLASLt).
- fp8: T = 1 to `w8a16_gemv.py` (norm and activation included); up to 16 tokens to `w8a8_gemm.py`,
  128 if a norm adds up the parts; more to the library's scaled product on cards of
  compute capability 9.0 (`nvidia/scaled_mm.py`), on others to `w8a8_gemm.py`. int8:
  `w8a8_gemm.py`.
- int4, MXFP4: T = 1 of int4 to `packed_int32_gemv.py`; T < 512 to `packed_int32_gemm.py` (groups
  that fit a tile, 16-bit activations) or `packed_bytes_gemm.py` (any group, any order); from 512
  on `dequantise_matrix.py` dequantises the matrix once and the library multiplies.

Layout. Matrices are row-major [N, K]. 4-bit weights are two to a byte, the first in the low half;
read as int32, a word has inputs 8w .. 8w + 7 of one row. Scales are [N / tall, K / wide]; of
act-order checkpoints, inputs are sorted by group when weights are prepared. MXFP4 exponents are
e8m0 bytes.

Tile and split. A program has BLOCK_T tokens by BLOCK_N outputs; tokens are the fastest axis of
the grid, so that neighbours read the same weights (on AMD distributed to dies by `xcd_order.py`).
Few tokens have few tiles: K is split, and float32 parts [S, T, N] are added up, in order, by the
next norm or one more launch. With fewer than 64 tokens weights are the tall side of the tensor
core's tile.

What bounds it. Few tokens: reading the matrix; the bytes in flight matter, so programs, stages
and wide loads. Dequantising bounds 4-bit formats sooner than memory does, hence eight weights an
int32 at a time and scales applied as late as the format allows. With more tokens the tensor cores
bound it, and the library is ahead.

Measured (one H200): qwen3-8b's step of one row runs at 85 % of its limit, 1.7B's at 59 %; fp8
products of one token of 4,096 x 12,288 take 14.2 us. Tables are in the package atom_nvidia,
the model that extends them to other shapes in `cost_model.py`; docs/kernels/gemm.md has the figures
and the failed attempts.
"""
