"""SQL: plain sync functions on a connection, and the ledger that gathers the hot ones."""
