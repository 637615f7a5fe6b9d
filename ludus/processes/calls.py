"""What a worker process is asked, and how that ends: as a value, whatever the function did to its process.

Knows: functions, pickles, deadlines, text that was printed.  Knows not: processes, pipes, threads.
Invariant: everything that a process is sent was pickled before it was chosen, so that what cannot travel is told at the
caller.
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
    """A call did not end in its time; its process was killed."""


class WorkerCrashedError(LudusError, RuntimeError):
    """The process of a call ended before the call did."""


@dataclass(frozen=True, slots=True)
class RemoteFunction:
    """A function that every process loads once and keeps; an instance that it belongs to keeps its state there."""

    payload: bytes
    is_factory: bool = False
    """The payload makes the function: it is called once in every process."""
    id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", hashlib.sha256(self.payload).hexdigest() + str(self.is_factory))

    @classmethod
    def of(cls, function: Callable[..., Any]) -> RemoteFunction:
        """The function as it is now. Raises UserError if it cannot travel."""
        return cls(dumps(function, "the function"))

    @classmethod
    def made_by(cls, factory: Callable[[], Callable[..., Any]]) -> RemoteFunction:
        """The function that `factory()` returns, which is called once in each process, before its first call."""
        return cls(dumps(factory, "the factory"), is_factory=True)


Function = Callable[..., Any] | RemoteFunction
Kwargs = Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class WorkerCall:
    """One call of a function in a process."""

    function: RemoteFunction
    arguments: bytes
    is_kept: bool
    """The process keeps the function for later calls."""
    timeout_s: float | None
    """From the moment at which the function begins. None: it may take for ever."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Set for the length of the call, on top of the environment of the process."""

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
        """Raises UserError if the function or an argument cannot be sent to another process."""
        if timeout_s is not None and not timeout_s > 0:
            raise UserError(f"timeout_s={timeout_s} must be more than 0, or None for no limit")
        remote = function if isinstance(function, RemoteFunction) else RemoteFunction.of(function)
        arguments = dumps((tuple(args), dict(kwargs or {})), "an argument")
        return cls(remote, arguments, isinstance(function, RemoteFunction), timeout_s, dict(env or {}))


@dataclass(frozen=True, slots=True)
class Output:
    """What a call printed: the beginning and the end of each stream."""

    stdout: str = ""
    stderr: str = ""
    num_bytes: int = 0
    """Of both streams, also of what is left out above."""


@dataclass(frozen=True, slots=True)
class Returned:
    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    words: str
    """The error's class and message."""
    trace: str
    """Its traceback in the process, frames of the user's code alone."""
    codes: str = ""
    """Codes and messages of the error and of those that caused it, a line each."""
    payload: bytes | None = None
    """The error itself, pickled. None: it cannot travel."""

    def error(self) -> Exception:
        """The error itself, or a RuntimeError with its words where it cannot travel, or would end more than a call."""
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
    """How a call ended, and what it printed."""

    ending: Returned | Raised | TimedOut | Crashed
    output: Output

    def result(self) -> Any:
        """What the function returned; raises what it raised, or that its process was killed or ended."""
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
    """The pickle of a value, classes and functions of scripts, notebooks and closures included.

    Raises UserError if it cannot travel to another process.
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
    """Within, what belongs to the module travels whole if another process could not import it."""
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
    """Another process with the same `sys.path` finds the same module under its name."""
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
