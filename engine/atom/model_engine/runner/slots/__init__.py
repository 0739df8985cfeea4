"""What the device keeps of every running sequence, a slot each, and what a step takes of it."""
