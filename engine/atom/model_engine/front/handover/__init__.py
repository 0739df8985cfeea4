"""Answers that go on elsewhere: at another rank, or at another replica of the model."""
