"""Attacks on the boundary from inside real sandboxes, each with its positive control."""
