"""Accuracy of a real model by format, beside transformers."""
