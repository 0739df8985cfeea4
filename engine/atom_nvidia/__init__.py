"""Measured tiles of NVIDIA's cards (`tuned/`), and the program that measures them (`tune/`).

A package of the wheel beside the engine, which the engine's images leave out: AMD's GPUs and CPUs
need neither. The engine finds its tables if it is installed, and imports nothing of it.
"""
