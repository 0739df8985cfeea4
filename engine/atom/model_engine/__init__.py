"""The engine: processes, scheduling, KV cache, and running the model."""
