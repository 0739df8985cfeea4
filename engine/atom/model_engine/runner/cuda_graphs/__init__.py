"""Steps captured once and replayed: their memory, their sizes, and the host's messages to them."""
