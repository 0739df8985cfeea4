"""PersistentVolumeClaims of pods: who can share one, and what of one with weights is used."""
