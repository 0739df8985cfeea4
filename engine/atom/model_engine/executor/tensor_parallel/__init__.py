"""A model that several processes share: each has a part of every matrix, and its own device."""
