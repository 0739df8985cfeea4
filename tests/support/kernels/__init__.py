"""Triton's interpreter and compiler without a card."""
