"""Frozen words: ids, calls, grants, plans, outcomes, results, faults, ports. No I/O, no clock (L0)."""
