"""Holds what only NVIDIA's cards have: fp8 hi/lo splits, TMA tiles, cuDNN and cuBLAS calls."""
