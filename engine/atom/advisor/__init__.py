"""The advisor: how fast a model is on a card, and what to buy for a load and its targets.

Time of a step from the bytes and products of its operations (`operations`, `rates`, `step_time`),
queues and batches from the engine's own scheduler under a virtual clock (`simulation`), and the
search over cards, divisions and replicas (`advice`). Torch-free; no device, cluster or clock.
"""
