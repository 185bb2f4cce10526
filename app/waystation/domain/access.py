"""Who asks. Passed through services and stores, so that reads and writes can be confined to what the asker may see."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """`subject` is None without authentication: then nothing is confined. `request_id` names the request in logs."""

    subject: str | None = None
    request_id: str | None = None

    def user_for(self, given: str | None) -> str | None:
        """The user that a request is for: an authenticated subject wins over what the client says."""
        return self.subject or given

    def may_see(self, owner: str | None) -> bool:
        """Whether what belongs to this user, or to nobody, may be shown."""
        return self.subject is None or owner in (None, self.subject)


ANYBODY = Principal()
