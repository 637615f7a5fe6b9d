"""Calls of a worker process, and how they ended: always a value, whatever the function did to its process.

Knows: functions, pickles, deadlines, printed text.  Knows not: processes, pipes, threads.
Invariant: everything is pickled before a process is chosen, so that the caller learns what cannot be sent.
"""

from __future__ import annotations

import hashlib
import importlib
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from ludus.errors import LudusError, UserError

# cloudpickle keeps the modules that it sends whole in one place for all threads.
_REGISTRY_LOCK = threading.Lock()


class WorkerTimeoutError(LudusError, TimeoutError):
    """A call exceeded its time limit; its process was killed."""


class WorkerCrashedError(LudusError, RuntimeError):
    """The process of a call ended before the call did."""


@dataclass(frozen=True, slots=True)
class RemoteFunction:
    """A function that every process loads once and keeps, with the state of the instance it is bound to."""

    payload: bytes
    is_factory: bool = False
    """The payload is a factory of the function, which is called once in every process."""
    id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", hashlib.sha256(self.payload).hexdigest() + str(self.is_factory))

    @classmethod
    def of(cls, function: Callable[..., Any]) -> RemoteFunction:
        """The function, pickled now. Raises UserError if it cannot be pickled."""
        return cls(dumps(function, "the function"))

    @classmethod
    def made_by(cls, factory: Callable[[], Callable[..., Any]]) -> RemoteFunction:
        """The function returned by `factory()`, which is called once in each process, before the first call."""
        return cls(dumps(factory, "the factory"), is_factory=True)


Function = Callable[..., Any] | RemoteFunction
Kwargs = Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class WorkerCall:
    """One call of a function in a process."""

    function: RemoteFunction
    arguments: bytes
    is_kept: bool
    """Whether the process keeps the function for later calls."""
    timeout_s: float | None
    """Time limit, counted from the start of the function. None: no limit."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for the length of the call, in addition to those of the process."""

    @classmethod
    def of(
        cls,
        function: Function,
        args: Sequence[Any] = (),
        kwargs: Kwargs = None,
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> WorkerCall:
        """The call. Raises UserError if the function or an argument cannot be sent to another process."""
        if timeout_s is not None and not timeout_s > 0:
            raise UserError(f"timeout_s={timeout_s} must be more than 0, or None for no limit")
        remote = function if isinstance(function, RemoteFunction) else RemoteFunction.of(function)
        arguments = dumps((tuple(args), dict(kwargs or {})), "an argument")
        return cls(remote, arguments, isinstance(function, RemoteFunction), timeout_s, dict(env or {}))


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a call: the beginning and the end of each stream."""

    stdout: str = ""
    stderr: str = ""
    num_bytes: int = 0
    """Size of both streams, including what was cut out."""


@dataclass(frozen=True, slots=True)
class Returned:
    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    words: str
    """The error's class and message."""
    trace: str
    """Its traceback in the process, with the frames of the user's code only."""
    codes: str = ""
    """Codes and messages of the error and of its causes, one per line."""
    payload: bytes | None = None
    """The error itself, pickled. None: it cannot be pickled."""

    def error(self) -> Exception:
        """The error itself, or a RuntimeError with its message if it cannot be pickled or is not an Exception."""
        try:
            error = None if self.payload is None else pickle.loads(self.payload)
        except Exception:  # its class is known to the process alone
            error = None
        error = error if isinstance(error, Exception) else RuntimeError(self.words)
        error.add_note(f"in a worker process:\n{self.trace}")
        return error


@dataclass(frozen=True, slots=True)
class TimedOut:
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Crashed:
    how: str
    """Such as `killed by SIGSEGV` or `exit status 3`."""


@dataclass(frozen=True, slots=True)
class CallEnd:
    """How a call ended, and its output."""

    ending: Returned | Raised | TimedOut | Crashed
    output: Output

    def result(self) -> Any:
        """The function's result. Raises the function's error, WorkerTimeoutError or WorkerCrashedError."""
        match self.ending:
            case Returned(value):
                return value
            case Raised() as raised:
                raise raised.error()
            case TimedOut(timeout_s):
                raise WorkerTimeoutError(f"the call took longer than {timeout_s} s; its process was killed")
            case Crashed(how):
                last = self.output.stderr.strip()[-500:]
                raise WorkerCrashedError(
                    f"the process of the call ended ({how})" + (f"; it last wrote: {last}" if last else "")
                )


def dumps(value: object, what: str) -> bytes:
    """The pickle of a value, including classes and functions of scripts, notebooks and closures.

    Raises UserError if it cannot be pickled.
    """
    try:
        cloudpickle = importlib.import_module("cloudpickle")
    except ModuleNotFoundError:
        raise UserError("functions travel to worker processes with cloudpickle: pip install cloudpickle") from None
    module = sys.modules.get(getattr(value, "__module__", None) or type(value).__module__)
    with _by_value(cloudpickle, module):
        try:
            payload: bytes = cloudpickle.dumps(value)
        except Exception as error:  # whatever a user's __reduce__ raises
            raise UserError(
                f"{what} cannot be sent to another process: {type(error).__name__}: {error}; "
                "make clients, locks and open files inside of the process instead"
            ) from error
    return payload


@contextmanager
def _by_value(cloudpickle: Any, module: ModuleType | None) -> Iterator[None]:
    """Within the block, objects of the module are pickled by value if another process could not import the module."""
    if module is None or _can_be_imported(module):
        yield
        return
    with _REGISTRY_LOCK:
        cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            cloudpickle.unregister_pickle_by_value(module)


def _can_be_imported(module: ModuleType) -> bool:
    """Whether another process with the same `sys.path` would find the same module under its name."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__ == "__main__":  # built in; cloudpickle itself sends scripts whole
        return True
    parent = sys.modules.get(module.__name__.rpartition(".")[0])
    folders = None if parent is None else list(getattr(parent, "__path__", ()))
    for finder in sys.meta_path:
        spec = finder.find_spec(module.__name__, folders)
        if spec is not None:
            is_frozen = spec.origin == "frozen"  # into the interpreter, as `os` is
            return is_frozen or (spec.origin is not None and Path(spec.origin).resolve() == Path(file).resolve())
    return False
