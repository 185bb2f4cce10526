"""Models for native agents: what a model is (`base`), scripted ones for tests and examples, and the offline demo."""
