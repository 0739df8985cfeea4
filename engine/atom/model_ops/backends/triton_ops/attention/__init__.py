"""Keeps keys, values and latents in the paged cache, and attends to them."""
