"""Layers that models are built from, and the backends that compute them."""
