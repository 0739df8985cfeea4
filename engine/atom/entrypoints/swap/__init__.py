"""`atom serve --models FILE`: several models in one server, which share a device by sleep and
wake."""
