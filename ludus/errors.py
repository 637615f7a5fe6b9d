"""Every error Ludus raises on purpose, in one tree whose branches name the guilty party.

    LudusError
    ├── UserError        the person who wrote the configuration, the data or the call
    │   └── ConfigError  a key or value of the configuration tree
    │       └── MissingModuleError  an import string names a module that is not there
    ├── AgentError       the client of the gateway; carries an HTTP status and a typed code
    ├── BackendError     the engine or the machine under it
    └── InternalError    Ludus itself; please report

Each message says what was wrong, the value got, what is allowed and what to do next.
Every error pickles, because episodes travel between processes with their errors inside.
"""

from __future__ import annotations


class LudusError(Exception):
    """Root of all errors raised on purpose."""


class UserError(LudusError, ValueError):
    """The caller passed something that cannot work; the message says what would."""


class ConfigError(UserError):
    """A configuration key is unknown, or its value cannot act."""


class MissingModuleError(ConfigError, ModuleNotFoundError):
    """An import string names a module that is not there."""


class AgentError(LudusError):
    """A request of an agent that is refused; becomes an HTTP error in the protocol's own shape.

    status: HTTP status, 400..499.  code: typed code such as `context_length_exceeded`.
    param: the request field at fault, or None when no single field is.
    """

    def __init__(
        self, message: str, *, status: int = 400, code: str = "invalid_request", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = param

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_agent_error, (self.message, self.status, self.code, self.param)


def _rebuild_agent_error(message: str, status: int, code: str, param: str | None) -> AgentError:
    return AgentError(message, status=status, code=code, param=param)


class BackendError(LudusError, RuntimeError):
    """An engine, its kernels or its device failed; the request may be tried again elsewhere."""


class InternalError(LudusError, RuntimeError):
    """An invariant of Ludus broke; the message carries what is needed to report it."""
