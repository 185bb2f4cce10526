"""HTTP: parses, asks one service, answers."""
