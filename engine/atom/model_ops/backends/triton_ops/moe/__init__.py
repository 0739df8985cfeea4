"""Chooses experts and multiplies with those that were chosen."""
