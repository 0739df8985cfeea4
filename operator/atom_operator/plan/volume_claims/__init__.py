"""PersistentVolumeClaims of pods: which pods can share one, and which weights on one are in use."""
