"""One batch of the ledger: an answer for each operation.

Each operation is whole by itself and nothing binds it to its neighbours but the commit that they share. So a batch may be several
transactions: what was committed when a later one fails is found when the batch is tried again.
"""

import sqlalchemy as sa

from waystation.db.dialect import by_dialect
from waystation.db.prepared import begin, begins_late, commit
from waystation.store import at_once
from waystation.store.accept import accept
from waystation.store.operations import Accept, Accepted, Answer, Operation, Step, Stepped, Verdict
from waystation.store.step import STORE_EVENTS, segment_of, step


@begins_late
def write(conn: sa.Connection, batch: list[Operation]) -> list[Answer]:
    """The answers in the order of the operations."""
    new = [o for o in batch if isinstance(o, Accept)]
    steps = [o for o in batch if isinstance(o, Step)]
    accepted: dict[str, Accepted] = {}
    stepped: dict[tuple[str, int], Stepped] = {}
    if by_dialect(conn, sqlite=False, postgresql=True):
        accepted, stepped = at_once.write(conn, new, steps)
        new = [a for a in new if a.run.id not in accepted]
        steps = [s for s in steps if (s.run_id, s.epoch) not in stepped]
        if new or steps:
            commit(conn)
    if new or steps:
        # Accepts before fences: a fence locks entries of the holder index, on which another process's accept may wait.
        begin(conn)
        accepted |= _accept(conn, new)
        stepped |= step(conn, steps)
    return [accepted[o.run.id] if isinstance(o, Accept) else stepped[o.run_id, o.epoch] for o in batch]


def _accept(conn: sa.Connection, new: list[Accept]) -> dict[str, Accepted]:
    if not new:
        return {}
    answers = accept(conn, new)
    started = [a for a in new if answers[a.run.id].verdict is Verdict.STARTED and not answers[a.run.id].was_stored]
    if first := [segment_of(a.run.id, a.run.session_id, 0, a.first) for a in started if a.first]:
        STORE_EVENTS.many(conn, first)
    return answers
