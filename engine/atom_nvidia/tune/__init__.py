"""Measures the kernels' configurations on this card; never imported while serving."""
