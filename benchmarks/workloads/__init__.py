"""What is asked of an engine: public model shapes, checkpoints of them, and a set of requests."""
