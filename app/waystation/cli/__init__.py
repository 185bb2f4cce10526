"""The command `waystation`."""
