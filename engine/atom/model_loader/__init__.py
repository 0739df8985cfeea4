"""From checkpoint files to the parameters of a model."""
