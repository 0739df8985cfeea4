"""The prefill and decode pods of an AtomDeployment, in its status."""
