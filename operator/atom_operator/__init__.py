"""The operator: turns an AtomDeployment into running engine pods (docs/architecture.md)."""
