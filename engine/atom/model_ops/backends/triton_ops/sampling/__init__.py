"""The two ends of a captured step: inputs from the slots; logits to tokens, stored in the slots.

The modules

- `decode_state.py`: the host's message about the step, the step's inputs gathered from the slots,
  and sampled tokens written back. The host copies no data between two steps.
- `token_bitmask.py`: structured output's mask, one bit a token, on guided rows only.
- `top_k_top_p_min_p.py`: the logit filters top-k, top-p and min-p, without sorting.
- `sampling.py`: one draw a row by two exponential races (Gumbel-max in another form), or the
  maximum; for a vocabulary shard its winner and score.
- `ngram_drafts.py`: n-gram (prompt lookup) drafts from a row's own tokens, their layout in the
  step, and their acceptance.

Layout. Logits are [rows, vocabulary] in any float dtype. Noise is counted by groups of tokens
(noise.GROUP), so it does not depend on the vocabulary's division; floats are compared as unsigned
keys of the same order (`ordered_keys.py`).

Tile and split. A program has a chunk of a row's vocabulary and keeps its best group; a second
kernel takes the best of a row's chunks. Filters: the highest logit and the weight of each group
of 64 tokens, then one program a row that searches the 64 likeliest groups, in registers. Two to
four launches, for any limits, so one captured graph serves all.

What bounds it. Few rows: the number of launches. Many: one read of the logits (151,936 x 2 bytes
a row). A flat distribution with top-p reads the row again for each bit of a key.

Measured: docs/results/gpu/sampling.md.
"""
