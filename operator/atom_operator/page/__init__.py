"""The operator's page: AtomDeployments, nodes and rollouts, to look at."""
