"""Shipped test kit: fakes, manual clock, fault points, conformance suite."""
