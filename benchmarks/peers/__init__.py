"""What we are compared with in the same run."""
