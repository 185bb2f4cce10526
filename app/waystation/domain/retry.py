"""When a failed turn is started again, and after how long."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """`attempts` starts of a turn in all. The wait is `delay_s`, doubled for each further attempt if `exponential`, and then
    drawn evenly between 0 and that if `jitter`, so that many runs that failed together do not come back together."""

    attempts: int = 1
    delay_s: float = 1.0
    exponential: bool = False
    jitter: bool = False
    max_delay_s: float = 60.0

    def delay_after(self, attempt: int) -> float:
        """Seconds to wait after the failed attempt `attempt` (1 for the first)."""
        delay = self.delay_s * 2.0 ** min(attempt - 1, 64) if self.exponential else self.delay_s
        delay = min(delay, self.max_delay_s)
        return random.uniform(0, delay) if self.jitter else delay
