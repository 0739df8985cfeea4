"""Line charts of a few points, for a terminal and as a picture that needs nothing else."""
