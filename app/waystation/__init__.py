"""Waystation."""
