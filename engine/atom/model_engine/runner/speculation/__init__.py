"""Steps whose decodes carry drafts: run, followed by the proposer, and timed at start."""
