"""AITER's adapters under test: models that its kernels take, mistakes, ranks."""
