"""What Waystation speaks of, without any I/O."""
