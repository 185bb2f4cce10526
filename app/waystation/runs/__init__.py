"""The lifecycle: accept, execute, finish; and watching what was committed."""
