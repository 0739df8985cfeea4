"""Prefill and decode pods of one AtomDeployment, which change as a pair."""
