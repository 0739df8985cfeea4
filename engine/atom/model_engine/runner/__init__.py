"""The part of the engine on a device: a step's tensors, graphs, sampling and the KV cache's
memory."""
