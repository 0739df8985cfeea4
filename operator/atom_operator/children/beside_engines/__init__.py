"""Pods beside the engines, of their image and made from their template: Jobs and the frontend."""
