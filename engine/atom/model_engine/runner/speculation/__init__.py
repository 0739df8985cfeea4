"""Steps whose decodes carry drafts: run, caught up with by the proposer, and timed at start."""
