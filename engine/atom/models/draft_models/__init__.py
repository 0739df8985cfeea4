"""Models that draft for another: EAGLE-3's checkpoints, and the layers for it of a checkpoint."""
