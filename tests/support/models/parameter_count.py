"""The parameters of a model as its publishers count them, of what atom.sizing knows of it."""

from atom.sizing import ModelFacts


def parameter_count(facts: ModelFacts) -> int:
    """Parameters of the whole model; a tied output head is counted once, as the embedding. MTP
    layers and the routers' corrections of the balance are not parameters of it."""
    corrections = sum(
        alike.count * alike.layer.mlp.experts.count
        for alike in facts.layer_counts
        if alike.layer.mlp.experts is not None and alike.layer.mlp.experts.router_correction
    )
    return facts.weight_bytes(1) - corrections
