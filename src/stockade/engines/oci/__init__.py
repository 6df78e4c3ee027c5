"""Sandboxes by an OCI runtime on this host."""
