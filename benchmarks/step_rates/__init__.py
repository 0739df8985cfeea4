"""Rates of steps: the seconds of an engine's steps on a device, fitted as a table for advice."""
