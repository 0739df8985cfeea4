"""The parameters of a model as its publishers count them, of what atom.sizing knows of it."""

from atom.sizing import ModelFacts


def parameter_count(facts: ModelFacts) -> int:
    """Parameters of the whole model; a tied output head is counted once, as the embedding. MTP
    layers, the routers' corrections of the balance and tables of tokens' experts are not parameters
    of it."""
    corrections = sum(
        alike.count * alike.layer.mlp.experts.count
        for alike in facts.layer_counts
        if alike.layer.mlp.experts is not None and alike.layer.mlp.experts.router_correction
    )
    tables = sum(
        alike.count * 8 * facts.vocab_size * alike.layer.mlp.experts.per_token
        for alike in facts.layer_counts
        if alike.layer.mlp.experts is not None and alike.layer.mlp.experts.by_token
    )
    return facts.weight_bytes(1) - corrections - tables
