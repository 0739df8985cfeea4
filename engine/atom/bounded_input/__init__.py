"""Readers of untrusted text, in bounded time and memory.

A checkpoint, an adapter, a line of a batch file or a pod's answer may hold anything. A read costs
at most its bounds; any text beyond them is an error with one sentence. Torch-free, standard library
and well-kept parsers only; the engine, the sizing and the operator use this package. It does not
interpret the text.
"""
