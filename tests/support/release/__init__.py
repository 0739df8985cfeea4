"""A small repository to make releases of, keys to sign them with, a registry to push them to."""
