"""Durable state (L3)."""
