"""The fields of a run and of a continuation, as clients send them."""

import hashlib
import json
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo
from starlette.datastructures import UploadFile

from waystation.api.bodies import invalid, strict_json
from waystation.clock import new_id, now
from waystation.config import Settings
from waystation.domain.checkpoint import ContinueFrom, parse_continue_from
from waystation.domain.media import Attachment, kind_of, shown_name, type_of
from waystation.domain.output_schema import problem_with
from waystation.domain.run import OnBusy, OnDisconnect, RunInput
from waystation.domain.text import REPLACEMENT, clean, is_identifier
from waystation.domain.webhook import EVENTS, Endpoint, EventName, is_literally_private, problem_with_url
from waystation.errors import InvalidInputError, NotSupportedError, PayloadTooLargeError, UnsupportedMediaError, WebhooksOffError
from waystation.runs.request import ContinueRequest, RunRequest

MAX_AHEAD_S = 30 * 86_400.0
MOST_WEBHOOKS = 10
MEDIA_SOURCES = ("url", "content", "id", "file_id")


def _none_if_empty(value: Any) -> Any:
    return None if value == "" else value


def _no_flag(value: Any) -> Any:
    # Pydantic takes JSON's true for 1.
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


def _json(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return value
    assert info.context is not None  # given by `bodies.validated`
    return strict_json(value, info.context["max_json_depth"]) if value else None


def _identifier(value: str | None) -> str | None:
    # U+FFFD stands where a character could not be stored: two ids would become one.
    if value is not None and (REPLACEMENT in value or not is_identifier(value)):
        raise ValueError("use 1 to 255 letters, digits or . _ - : @ ~ + = , or printable non-ASCII characters")
    return value


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be blank")
    return clean(value)


def _media(value: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    for item in value or ():
        if not any(isinstance(item.get(name), str) and item[name] for name in MEDIA_SOURCES):
            raise ValueError(f"each object needs one of {', '.join(MEDIA_SOURCES)} as a text")
    return value


def _webhook_url(value: str) -> str:
    if problem := problem_with_url(value):
        raise ValueError(problem)
    return value


def _schema(value: dict[str, Any] | None) -> dict[str, Any] | None:
    if value is not None and (problem := problem_with(value)):
        raise ValueError(problem)
    return value


JsonObject = Annotated[dict[str, Any] | None, BeforeValidator(_json)]
JsonObjects = Annotated[list[dict[str, Any]] | None, BeforeValidator(_json)]
Media = Annotated[JsonObjects, AfterValidator(_media)]
Identifier = Annotated[str | None, BeforeValidator(_none_if_empty), AfterValidator(_identifier)]
Integer = Annotated[int, BeforeValidator(_no_flag)]
Number = Annotated[float, BeforeValidator(_no_flag)]
Flag = Annotated[bool | None, BeforeValidator(_none_if_empty)]


class WebhookForm(BaseModel):
    """One of a run's own webhooks. `events` is whatever it wants to hear of; without it, all."""

    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, AfterValidator(_webhook_url)]
    events: Annotated[list[EventName], Field(min_length=1)] | None = None


class RunForm(BaseModel):
    """The body of `POST /agents/{agent_id}/runs`. In a form, objects and lists are JSON texts."""

    model_config = ConfigDict(extra="forbid")

    message: Annotated[str, AfterValidator(_not_blank)] = Field(description="The prompt, handed on verbatim.")
    stream: bool = Field(default=True, description="Answer with an event stream, or wait for the end and answer one JSON object.")
    background: bool = Field(default=False, description="Answer 202 at once, or stream a run that any replica may execute.")
    session_id: Identifier = None
    user_id: Identifier = None
    on_busy: OnBusy | None = Field(default=None, description="What to do when the session has a turn in flight.")
    on_disconnect: OnDisconnect = OnDisconnect.CONTINUE
    files_metadata: JsonObjects = Field(default=None, description="One object for each file, by position.")
    images: Media = None
    audio: Media = None
    videos: Media = None
    input_files: Media = None
    output_schema: Annotated[JsonObject, AfterValidator(_schema)] = None
    session_state: JsonObject = None
    dependencies: JsonObject = None
    metadata: JsonObject = None
    knowledge_filters: Annotated[Any, BeforeValidator(_json)] = None
    max_attempts: Annotated[Annotated[int, Field(ge=1, le=10), BeforeValidator(_no_flag)] | None, BeforeValidator(_none_if_empty)] = None
    timeout_s: Number = Field(default=3600.0, ge=1, le=86_400)
    available_at: Annotated[Annotated[Number, Field(allow_inf_nan=False)] | None, BeforeValidator(_none_if_empty)] = Field(
        default=None, description="Not before this time: seconds since the epoch, UTC, at most 30 days ahead."
    )
    webhooks: Annotated[Annotated[list[WebhookForm], Field(max_length=MOST_WEBHOOKS)] | None, BeforeValidator(_json)] = Field(
        default=None, description="Whom to tell of the end and of pauses of this run, signed."
    )
    stream_events: bool = Field(default=True, description="False leaves only content and the event that ends the run.")
    add_history_to_context: Flag = None
    add_dependencies_to_context: Flag = None
    add_session_state_to_context: Flag = None
    debug_mode: Flag = None
    version: Annotated[Integer | None, BeforeValidator(_none_if_empty)] = None
    factory_input: str | None = None
    use_json_schema: bool = False


NOT_YET = (
    "dependencies", "knowledge_filters", "add_dependencies_to_context", "add_session_state_to_context", "debug_mode", "version",
    "factory_input",
)  # fmt: skip
"""Fields of AgentOS that no agent of this version would heed: refused rather than taken and forgotten."""
SAME_REQUEST_WITHOUT = {"stream", "background", "stream_events", "on_disconnect"}


def request_hash(form: RunForm, uploads: list[Attachment]) -> str:
    """What makes two requests under one Idempotency-Key the same."""
    body = form.model_dump(mode="json", exclude=SAME_REQUEST_WITHOUT, exclude_none=True)
    files = [[a.name, a.mime_type, hashlib.sha256(a.content).hexdigest()] for a in uploads]
    return hashlib.sha256(json.dumps([body, files], sort_keys=True).encode()).hexdigest()


def _endpoints(webhooks: list[WebhookForm], settings: Settings) -> tuple[Endpoint, ...]:
    """Refuses what would never be sent. Where a name leads is seen when it is called."""
    if settings.webhook_secret is None:
        raise WebhooksOffError
    for place, webhook in enumerate(webhooks):
        if not settings.webhook_allow_private and is_literally_private(webhook.url):
            raise InvalidInputError("webhooks", f"the address of webhook {place} is not one of the public internet")
    return tuple(Endpoint(source="run", id=str(place), events=tuple(w.events or EVENTS), url=w.url) for place, w in enumerate(webhooks))


def run_request(agent_id: str, form: RunForm, attachments: tuple[Attachment, ...], key: str | None, settings: Settings) -> RunRequest:
    if len(form.message.encode()) > settings.max_message_bytes:
        raise PayloadTooLargeError(f"The message is larger than {settings.max_message_bytes} bytes.")
    if form.available_at is not None and form.available_at > now() + MAX_AHEAD_S:
        raise InvalidInputError("available_at", "must be at most 30 days ahead")
    if unknown := [name for name in NOT_YET if getattr(form, name)]:
        raise NotSupportedError(f"Not supported by this version: {', '.join(unknown)}.")
    files = [*(form.input_files or []), *(a.described() for a in attachments)]
    return RunRequest(
        agent_id=agent_id,
        input=RunInput(
            message=form.message,
            images=form.images or [],
            audio=form.audio or [],
            videos=form.videos or [],
            files=files,
            session_state=form.session_state,
            output_schema=form.output_schema,
            use_json_schema=form.use_json_schema,
            add_history_to_context=form.add_history_to_context,
        ),
        session_id=form.session_id,
        user_id=form.user_id,
        background=form.background,
        on_busy=form.on_busy,
        on_disconnect=form.on_disconnect,
        metadata=form.metadata or {},
        webhooks=_endpoints(form.webhooks, settings) if form.webhooks else (),
        attachments=attachments,
        max_attempts=form.max_attempts,
        timeout_s=form.timeout_s,
        available_at=form.available_at,
        idempotency_key=key,
        request_hash=request_hash(form, list(attachments)) if key is not None else None,
    )


async def read_attachments(uploads: list[UploadFile], metadata: list[dict[str, Any]] | None) -> tuple[Attachment, ...]:
    """The uploads as attachments, with the metadata at the same place. UnsupportedMediaError for a kind that no agent takes."""
    attachments = []
    ids = sorted(new_id() for _ in uploads)  # read in their order: ids of one millisecond have none among them
    for place, upload in enumerate(uploads):
        name = shown_name(upload.filename)
        mime_type = type_of(upload.content_type, name)
        kind = kind_of(mime_type)
        if kind is None:
            raise UnsupportedMediaError(f"Files of type {mime_type!r} are not taken.")
        about = metadata[place] if metadata and place < len(metadata) else None
        content = await upload.read()
        attachments.append(Attachment(id=ids[place], name=name, mime_type=mime_type, kind=kind, content=content, metadata=about))
    return tuple(attachments)


class ContinueForm(BaseModel):
    """The body of `POST …/continue`."""

    model_config = ConfigDict(extra="forbid")

    tools: JsonObjects = Field(default=None, description="The tool calls of the paused run, answered.")
    input: Annotated[str | None, BeforeValidator(_none_if_empty)] = Field(default=None, description="A new user message.")
    continue_from: Annotated[str | int, BeforeValidator(_no_flag)] = Field(
        default="end", description="`end`, `last_user` or a message index."
    )
    fork: bool = False
    regenerate: bool = False
    replace_original: Flag = None
    additional_instructions: Annotated[str | None, BeforeValidator(_none_if_empty)] = None
    session_id: Identifier = None
    user_id: Identifier = None
    stream: bool = True
    background: bool = False
    stream_events: bool = True


def continue_request(agent_id: str, run_id: str, form: ContinueForm) -> ContinueRequest:
    point: ContinueFrom = parse_continue_from(form.continue_from)
    if form.input is not None and not form.input.strip():
        raise invalid("input", "must not be blank")
    return ContinueRequest(
        agent_id=agent_id,
        run_id=run_id,
        user_id=form.user_id,
        answers=form.tools or [],
        input=form.input,
        continue_from=point,
        fork=form.fork,
        regenerate=form.regenerate,
        replace_original=form.replace_original,
        additional_instructions=form.additional_instructions,
        background=form.background,
    )


class ResumeForm(BaseModel):
    """The body of `POST …/resume`."""

    model_config = ConfigDict(extra="forbid")

    last_event_index: Annotated[Integer | None, BeforeValidator(_none_if_empty)] = None
    session_id: Identifier = None
