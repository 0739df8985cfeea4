"""Gives a device's memory back while an engine sleeps, and takes it again as it was."""
