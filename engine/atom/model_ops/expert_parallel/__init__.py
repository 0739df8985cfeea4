"""Experts on several ranks: tokens brought to them and back, and experts moved by load (EPLB)."""
