"""Logging: one line a record, fields as `key=value`, never a prompt, a tool's output or a key."""

import logging
import sys
from typing import Any


class Logger:
    """A thin front of a standard logger: `log.info("run finished", run_id=…)` puts fields behind the message."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, message: str, **fields: Any) -> None:
        if self._logger.isEnabledFor(logging.DEBUG):
            self._logger.debug(_line(message, fields))

    def info(self, message: str, **fields: Any) -> None:
        if self._logger.isEnabledFor(logging.INFO):
            self._logger.info(_line(message, fields))

    def warning(self, message: str, **fields: Any) -> None:
        self._logger.warning(_line(message, fields))

    def error(self, message: str, **fields: Any) -> None:
        self._logger.error(_line(message, fields))

    def exception(self, message: str, **fields: Any) -> None:
        self._logger.exception(_line(message, fields))


def get_logger(name: str) -> Logger:
    return Logger(name)


def configure(level: str) -> None:
    """Send the package's records to standard error. A program that embeds Waystation sets up logging itself and skips this."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("waystation")
    root.handlers = [handler]
    root.setLevel(level.upper())
    root.propagate = False


def _line(message: str, fields: dict[str, Any]) -> str:
    return " ".join([message, *(f"{name}={_value(value)}" for name, value in fields.items())])


def _value(value: Any) -> str:
    text = str(value)
    return repr(text) if not text or any(c.isspace() or not c.isprintable() for c in text) else text
