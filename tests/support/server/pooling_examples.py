"""A body that each endpoint of a pooling model answers, as its document shows it."""

from atom.entrypoints.pooling.routes import _ROUTES

EXAMPLES = {path: route.example for route in _ROUTES for path in route.paths}
