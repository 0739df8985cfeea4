"""The endpoint picker that we run for a model, and what engine pods have for it."""
