"""Recorded loads that are replayed: counts of tokens, ids of blocks, times, and dependencies.

A trace has no texts. Readers turn each of two file formats into `TracedRequest`s, and prompts are
generated from the ids of their blocks, so that prefixes shared in the recording are shared again.
Torch-free.
"""
