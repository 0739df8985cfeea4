"""AMD devices of nodes, by a device plugin or by claims."""
