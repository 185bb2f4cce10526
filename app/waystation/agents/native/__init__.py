"""Native agents: our own run loop over a model, with tools written as Python functions.

`agent` is what users construct, `loop` executes a turn, `calls` decides and runs tool calls, `tools` and `functions` make a tool
of a Python function, `models` holds the models that need no key. Nothing here reads or writes the store.
"""
