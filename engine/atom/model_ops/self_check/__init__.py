"""Self-check: each operation of a start is held against the reference on the model's own inputs."""
