"""What makes sandboxes (L4)."""
