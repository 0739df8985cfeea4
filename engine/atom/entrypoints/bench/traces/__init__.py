"""Recorded loads that are replayed: counts of tokens, ids of blocks, times, and who waits for whom.

A trace has no texts. Readers turn each of two file formats into `TracedRequest`s, and prompts are
made up from the ids of their blocks, so that what was shared when the trace was recorded is shared
again. Torch-free.
"""
