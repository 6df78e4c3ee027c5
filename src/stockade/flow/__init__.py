"""The order of things: pipeline, sandboxes, leases, sweeper (L5)."""
