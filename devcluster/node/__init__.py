"""The node: its namespaces, network, cgroups and certificates, and the programs that run in it."""
