"""The decoder that all families share: its blocks, layer by layer, and the model built of them."""
