"""Steps captured once and replayed: their memory, their sizes, and what the host tells them."""
