"""Pods that compute prompts apart from those that answer: flags, labels, ports, AtomDeployment."""
