"""Models without a family here: a class of transformers computes them, with our attention."""
