"""Attention over the paged KV cache: grouped-query heads (GQA) and DeepSeek's MLA.

Which kernel computes which rows (`gqa.py`, `mla.py` and `sparse_mla.py` decide)

- Decode, one query a row: `decode_append.py`, with norm, rotation and the cache write in the same
  launch; `decode.py` if keys are cached already. Rows of one sequence that verify drafts share
  its keys: `verify_decode.py`.
- Prefill, ragged rows: `prefill.py` after `rope_store.py`. The library computes whole prompts of
  4,096 tokens together or more (`sdpa_prefill.py`), and long chunks after a history in pieces by
  cuDNN if the library would choose it (`long_chunks.py`, `nvidia/cudnn_attention.py`).
- MLA: decodes and chunks absorbed, W_UK into the query and W_UV into the result (`mla_decode.py`,
  `mla_prefill.py`); long prompts without a history up-projected, by the library. V3.2's indexer:
  `indexer_store.py`, `indexer_scores.py`, `indexer_topk.py`; attention to its selection is
  `sparse_mla_decode.py`, for prompts too.

Layout. K and V are [blocks, block size, Hkv, D] each, an MLA entry is [latent 512 | rotated key
64] a token; fp8 caches have a float32 scale a token and head (MLA: a token's latent). A slot is
block * block size + offset; tables are int32 [rows, blocks]. A head of D that is no power of two
is padded by halves, since rotation pairs element i with i + D / 2. Scores are base 2: log2(e) is
in the scale.

Tile and split. Decode: a program has a row, a KV head (its query heads padded to a tensor core's
16 rows) and a split of the context (Flash-Decoding, `split_kv.py`). The host
chooses the number of splits from sizes; the device computes their lengths from contexts, so a
captured graph stays valid. Prefill: a program has BLOCK_M queries times heads of a group; tiles
without a mask have a separate loop.

What bounds it. Decode: reading keys and values; few rows need splits to fill the card, many need
small tiles so that programs end together. Prefill: the tensor cores, then registers (the
softmax's sums). MLA decode with 128 heads: its products.

Measured (one H200): 256 equal rows decode at 4.30 TB/s; verification of four rows each of 64
sequences of 8,192 at 95 % of the memory's rate; prefill reaches 300 to 410 TFLOP/s, the library
450 to 610; chunks after a history in pieces 511 to 583. Figures and failed attempts:
docs/kernels/attention.md.
"""
