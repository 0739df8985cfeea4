"""Servers of one AtomDeployment that hand answers to each other."""
