"""Tiny checkpoints and tokenizers."""
