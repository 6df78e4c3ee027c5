"""Typed argument models, call to operation, raw outcome to result. Pure (L2)."""
