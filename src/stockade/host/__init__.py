"""The kernel, one small file per interface (L3)."""
