"""Mixtures of experts: the router of a layer, and its experts."""
