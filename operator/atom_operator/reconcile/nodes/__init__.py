"""The nodes of pods: nodes that do not answer, and groups that hold parts of each other's nodes."""
