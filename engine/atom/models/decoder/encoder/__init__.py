"""A text encoder in the place of a decoder: its layers, the pooling, and the head of labels."""
