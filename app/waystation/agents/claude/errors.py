"""What the SDK and the binary report as failures, as our AgentErrors. The one place that knows their words.

A result is a failure if `is_error` says so: after a failed API request its subtype is "success" all the same.
"""

from collections.abc import Iterable, Sequence

from claude_agent_sdk import ClaudeSDKError, CLIJSONDecodeError, CLINotFoundError, ProcessError, ResultError, ResultMessage

from waystation.errors import AgentError

_LIMITS = {
    "error_max_turns": "max_turns_reached",
    "error_max_budget_usd": "max_budget_reached",
}
_REASONS = {
    "prompt_too_long": "context_too_long",
    "image_error": "invalid_request",
}
_STATUSES = {
    400: "invalid_request",
    401: "authentication_failed",
    403: "permission_denied",
    404: "model_not_found",
    413: "request_too_large",
    429: "rate_limited",
    529: "overloaded",
}
_RETRYABLE = frozenset({"rate_limited", "overloaded", "server_error", "api_unreachable"})
_MAX_CHARS = 4_000


class ResumeRefusedError(AgentError):
    """The binary does not know the conversation that it was to resume. Nothing was sent to the model."""

    def __init__(self, message: str) -> None:
        super().__init__(message, error_type="resume_refused")


def from_result(result: ResultMessage) -> AgentError:
    """The failure that a result with `is_error` tells of."""
    kind = _kind(result)
    lines = [result.result, *(result.errors or ())]
    text = "\n".join(line for line in lines if line) or f"The turn ended with {result.subtype}."
    return AgentError(text[:_MAX_CHARS], error_type=kind, retryable=kind in _RETRYABLE)


def _kind(result: ResultMessage) -> str:
    if limit := _LIMITS.get(result.subtype):
        return limit
    reason = result.terminal_reason
    if reason in ("aborted_streaming", "aborted_tools"):
        return "interrupted"
    if reason in _REASONS:
        return _REASONS[reason]
    status = result.api_error_status
    if status is not None:
        return _STATUSES.get(status) or ("server_error" if status >= 500 or status == 408 else "invalid_request")
    if reason != "api_error":
        return "agent_error"
    return "api_unreachable" if _no_answer(result.result or "") else "agent_error"


def _no_answer(text: str) -> bool:
    """Whether an error without a status is one of the connection; others are, say, an answer cut at its longest."""
    words = text.lower()
    return any(word in words for word in ("timed out", "timeout", "connect", "network", "socket", "econn"))


def is_of_sdk(error: BaseException) -> bool:
    """Whether an exception was raised by the SDK. It raises plain `Exception` for control requests that fail."""
    return isinstance(error, ClaudeSDKError) or type(error) is Exception


def from_exception(error: BaseException, *, connected: bool, resuming: bool, stderr: Sequence[str]) -> AgentError:
    """The failure behind an exception of the SDK's. `connected` says whether the binary had come up."""
    if isinstance(error, CLINotFoundError):
        return AgentError(f"The claude binary can't be started: {error}", error_type="sdk_not_found")
    if not connected and resuming and isinstance(error, ResultError):
        return ResumeRefusedError(_joined(["; ".join(error.errors) or str(error)]))
    if isinstance(error, CLIJSONDecodeError):
        return AgentError("The claude binary sent a line that can't be read.", error_type="sdk_protocol_error")
    killed = isinstance(error, ProcessError) and error.exit_code is not None and error.exit_code < 0
    if not connected:
        message = _joined([f"The claude binary did not start: {error}", *stderr])
        return AgentError(message, error_type="sdk_start_failed", retryable=killed)
    return AgentError(_joined([f"The claude binary ended early: {error}", *stderr]), error_type="sdk_ended_early", retryable=True)


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(lines)[:_MAX_CHARS]
