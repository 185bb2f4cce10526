"""News between processes, for tests that have one process only."""

from waystation.live.local import LocalLive


def alone() -> LocalLive:
    return LocalLive(None, lambda news: None)
