"""The operator's world in memory: objects, engines, watches."""
