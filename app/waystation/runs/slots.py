"""How many runs this process executes at the same time."""


class Slots:
    """`limit` is 0 in a process that executes nothing."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.closed = False
        """Set when the process stops taking new runs."""
        self.some_wait = False
        """Whether the last look left runs waiting that were due."""

    @property
    def free(self) -> int:
        return 0 if self.closed else self.limit - self.used

    @property
    def share(self) -> int:
        """How many of them one user may have while others wait: half."""
        return max(self.limit // 2, 1)

    def take(self, count: int = 1) -> bool:
        """Take slots, all or none."""
        if count > self.free:
            return False
        self.used += count
        return True

    def give_back(self, count: int = 1) -> None:
        self.used -= count
