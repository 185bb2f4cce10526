"""Settings, read from the environment (`WAYSTATION_*`) or given in code. Each is used somewhere; none is for later."""

from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

MEGABYTE = 1024 * 1024


class Settings(BaseSettings):
    """How one process of Waystation is set up. Times are in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix="WAYSTATION_", extra="ignore", frozen=True)

    database_url: str = "sqlite:///waystation.db"
    """`sqlite:///relative/file`, `sqlite:////absolute/file`, `sqlite://` (in memory), `postgresql://user@host/name`; a driver
    suffix is accepted and ignored."""
    database_direct_url: str | None = None
    """PostgreSQL itself, where `database_url` leads to a pooler that lends connections for a transaction, such as pgbouncer."""
    redis_url: str | None = None
    """`redis://host:port`: wake-ups between processes go through Redis instead of the database."""
    auto_migrate: bool = True
    """Bring the tables up to date at start-up."""
    sqlite_synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
    """NORMAL survives a crash of the process, FULL one of the machine."""

    host: str = "127.0.0.1"
    """Where `waystation serve` listens. There is no authentication yet: any other address must be asked for."""
    port: int = Field(default=7777, ge=0, le=65535)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    cors_origins: tuple[str, ...] = ("http://localhost:3000", "http://127.0.0.1:3000")
    """Origins of browser apps that may call the server; `["*"]` for any."""

    os_id: str = "waystation"
    os_name: str = "Waystation"

    worker: bool = True
    """Whether a server executes runs. If not, it only accepts and shows them, and others execute them."""
    worker_concurrency: int = Field(default=32, ge=1, le=10_000)
    """Runs that this process executes at the same time."""
    poll_s: float = Field(default=1.0, gt=0, le=60)
    """How often the store is asked for news when no wake-up came."""
    drain_s: float = Field(default=30.0, ge=0, le=3600)
    """How long running runs may go on after SIGTERM before they are handed back."""
    cancel_grace_s: float = Field(default=2.0, ge=0, le=60)
    """How long a turn may take to end after it was asked to stop, before its task is cancelled."""
    cancel_takeover_s: float = Field(default=3.0, gt=0, le=600)
    """How long the owner of a run may leave a cancel request unanswered before the run is ended over its head."""
    max_takeovers: int = Field(default=3, ge=0, le=100)
    """How often a run may go on after its process was lost, before it ends in ERROR `worker_lost`."""

    max_body_bytes: int = Field(default=32 * MEGABYTE, ge=1024)
    max_message_bytes: int = Field(default=10 * MEGABYTE, ge=1024)
    max_json_depth: int = Field(default=100, ge=1)
    max_form_fields: int = Field(default=1_000, ge=1)
    idempotency_days: float = Field(default=7.0, gt=0)
    """How long an Idempotency-Key is kept."""
    keep_logs_days: float | None = Field(default=None, gt=0)
    """How long the log of a run is kept after its end; None for ever. The run itself, its answer and messages stay."""
    keep_runs_days: float | None = Field(default=None, gt=0)
    """How long a run is kept after its end, with all of it; None for ever. What a session goes on from stays."""
    webhook_secret: SecretStr | None = None
    """`whsec_` and the base64 of 24 to 64 random bytes: signs for the webhooks that come with a run. Without it these are refused."""
    webhook_allow_private: bool = False
    """Whether webhooks may go to private, loopback and other addresses that are not of the public internet."""
    ping_s: float = Field(default=15.0, gt=0, le=15)
    """Longest silence of an event stream before a comment is sent."""
