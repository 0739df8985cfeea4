"""Readers of text that others wrote, in bounded time and memory.

A checkpoint, an adapter, a line of a batch file or a pod's answer may hold anything. What is read
here costs at most what its bounds say, and everything beyond them is an error with one sentence.
Torch-free, standard library and well-kept parsers only; the engine, the sizing and the operator use
it. It knows nothing of what the text means.
"""
