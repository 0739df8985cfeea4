"""Pods as the cluster shows them: their state, what they take, and why they are not made."""
