"""The servers without an engine that a model's Service leads to."""
