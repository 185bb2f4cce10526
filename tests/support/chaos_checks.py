"""What must hold after chaos, beyond the history of one run. Each gives sentences, none if all is as it must be."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from support.e2e_history import History

MAX_TAKEOVERS = 3
BUGS_IN_LOG = ("Traceback", "execution failed", "loop failed", "request failed", "operation refused", "agent failed")


def of_cancels(history: History, cancelled: Iterable[str]) -> list[str]:
    """What a client was told is CANCELLED stays so."""
    ends = {run_id: history.runs[run_id].row["status"] if run_id in history.runs else "missing" for run_id in cancelled}
    return [f"{run_id} was answered CANCELLED, and is {status}" for run_id, status in ends.items() if status != "CANCELLED"]


def of_order(history: History) -> list[str]:
    """Turns of a session begin in the order of their acceptance (the history has its rows in that order)."""
    found, last = [], dict[str, tuple[str, float]]()
    for run in history.runs.values():
        if (started := run.row["started_at"]) is not None:
            earlier, at = last.get(run.row["session_id"], ("", 0.0))
            if started < at:
                found.append(f"in session {run.row['session_id']} {run.row['id']} began before {earlier}, which was accepted before")
            last[run.row["session_id"]] = (run.row["id"], started)
    return found


def of_effects(history: History, effects: Sequence[str], notes: Collection[str]) -> list[str]:
    """Each effect was asked for and made once at most, and by each run that has completed."""
    counts = Counter(effects)
    asked = [run for run in history.runs.values() if run.row.get("agent_id") == "effect" and run.row["status"] == "COMPLETED"]
    lost = [run for run in asked if not counts[run.message.split()[1]]]
    return [
        *(f"the effect {word} was made {count} times" for word, count in counts.items() if count > 1),
        *(f"the effect {word} was asked for by nobody" for word in counts.keys() - set(notes)),
        *(f"{run.row['id']} is COMPLETED, and its effect was not made" for run in lost),
    ]


def of_logs(logs: Iterable[str]) -> list[str]:
    """No log tells of a bug."""
    return [f"a log has {word!r}: {log[log.index(word) :][:1500]}" for log in logs for word in BUGS_IN_LOG if word in log]


def wrongly_ended(history: History, asked: Collection[str]) -> list[str]:
    """Runs of native agents complete unless a client wanted to cancel them or their process was lost too often."""
    return [
        f"{run.row['id']} ended {run.row['status']} after {run.row['takeovers']} takeovers: {run.row['error']}"
        for run in history.runs.values()
        if run.row["agent_id"] != "ext"
        and run.row["status"] != "COMPLETED"
        and not (run.row["status"] == "CANCELLED" and run.row["id"] in asked)
        and run.row["takeovers"] <= MAX_TAKEOVERS
    ]
