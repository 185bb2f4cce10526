"""How committed events reach viewers."""
