"""Pods as the cluster shows them: their state, how they ended, and why they are not made."""
