"""Steps whose decodes carry drafts: run, followed by the drafter, and timed at start."""
