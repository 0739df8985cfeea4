"""The encoders of images that models have: their sizes, read from a multimodal config.json."""
