"""Container images without a registry: built from Dockerfiles, packed, loaded into the node."""
