"""How many runs this process executes at the same time."""


class Slots:
    """`limit` is 0 in a process that executes nothing."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.closed = False
        """Set when the process stops taking new runs."""

    @property
    def free(self) -> int:
        return 0 if self.closed else self.limit - self.used

    def take(self, count: int = 1) -> bool:
        """Take slots, all or none."""
        if count > self.free:
            return False
        self.used += count
        return True

    def give_back(self, count: int = 1) -> None:
        self.used -= count
