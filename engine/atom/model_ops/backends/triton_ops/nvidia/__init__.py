"""Code paths for NVIDIA's cards only; families call them and have an alternative without.

- `fp8_hi_lo.py`, `mxfp4_hi_lo.py`: MXFP4 experts multiplied as e4m3, with activations as the sum
  of two fp8 terms (hi and lo, together as precise as bfloat16). e2m1's bits are e4m3's after a
  shift, so eight weights become numbers by three shifts and four masks. From compute capability
  8.9 on.
- `tma_tiles.py`: tiles copied by the tensor memory accelerator, by a descriptor instead of a
  pointer for each row; Hopper and later, rows of a multiple of 16 bytes.
- `scaled_mm.py`: fp8 products of many tokens by cuBLAS (`torch._scaled_mm`); measured on 9.0 only.
- `cudnn_attention.py`: attention of a piece of a context with its log-sum-exps, for
  `long_chunks.py`.

The alternative on AMD: gfx942's fp8 (e4m3fnuz) has no minus zero, which the hi/lo terms need; its
experts take words of bfloat16 (`moe/grouped_mxfp4.py`), and gfx950 multiplies MXFP4 itself
(AITER). Tiles are smaller there (64 KiB of LDS on gfx942), a wavefront has 64 lanes, and
`xcd_order.py` distributes tiles to dies. Modules here import none of the families, so a reader of
AMD's path can skip them. Reasons and measurements: docs/kernels/moe.md,
docs/kernels/attention.md.
"""
