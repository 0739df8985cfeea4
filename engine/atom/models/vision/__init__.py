"""Encoders of images, a file per family, with the operations that they share."""
