"""The decoder that every family is: what it is made of, layer by layer, and the model of that."""
