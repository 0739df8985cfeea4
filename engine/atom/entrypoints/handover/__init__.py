"""Open answers that go on at another replica of the model: asked of it, and taken from it."""
