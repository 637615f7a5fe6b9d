"""The sandbox: what code in it may do, what it may not, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ludus.errors import BackendError, UserError
from ludus.processes import sandbox as module
from ludus.processes.sandbox import SandboxLimits, SandboxRun, run_python
from ludus.processes.walls import Walls, walls

pytestmark = pytest.mark.usefixtures("sandbox")


def run(code: str, **options: object) -> SandboxRun:
    limits = {name: options.pop(name) for name in list(options) if name in SandboxLimits.__slots__}
    return asyncio.run(run_python(code, limits=SandboxLimits(**limits), **options))  # type: ignore[arg-type]


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs of this test have their folders."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_script_runs_and_its_output_comes_back() -> None:
    """Standard input, both streams and the exit status."""
    done = run("import sys; print(input()[::-1]); print('oops', file=sys.stderr); sys.exit(3)", stdin="abc\n")
    assert (done.ending, done.exit_code, done.stdout, done.stderr) == ("error", 3, "cba\n", "oops\n")


def test_the_value_of_a_last_expression_is_shown_where_asked_for() -> None:
    """As in a notebook, and not for programs that are judged by what they print."""
    assert run("x = 6\nx * 7", shows_last=True).stdout == "42\n"
    assert run("x = 6\nx * 7").stdout == ""
    assert run("None", shows_last=True).stdout == ""


def test_an_error_is_shown_as_python_shows_it() -> None:
    """Frames of the script alone."""
    done = run("def f():\n    return 1 / 0\n\nf()")
    assert done.ending == "error"
    assert done.stderr.startswith("Traceback") and "ZeroDivisionError" in done.stderr
    assert done.stderr.count("File ") == 2 and "jail" not in done.stderr
    assert "SyntaxError" in run("1 +").stderr and "jail" not in run("1 +").stderr


def test_each_run_is_a_script_of_its_own() -> None:
    """Nothing stays from one run to the next; `__main__` is the script, as dataclasses and type hints need it."""
    assert "NameError" in (run("x = 1"), run("print(x)"))[1].stderr
    code = (
        "from __future__ import annotations\nimport dataclasses, typing\n@dataclasses.dataclass\nclass A:\n"
        "    b: B\nclass B: ...\nprint(typing.get_type_hints(A)['b'] is B, __name__)"
    )
    assert run(code).stdout == "True __main__\n"


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(60)"])
def test_code_that_does_not_end_is_killed(code: str) -> None:
    """What it printed before is kept."""
    begun = time.monotonic()
    done = run("print('begun')\n" + code, timeout_s=2.0)
    assert (done.ending, done.exit_code, done.stdout) == ("timeout", None, "begun\n")
    assert time.monotonic() - begun < 10


def test_children_die_with_the_run(own_folder: Path) -> None:
    """Also those that left its session."""
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    while True: time.sleep(0.01)\n"
        "print(len(os.listdir('/proc')) > 0)"
    )
    assert run(code).ending == "ok"
    deadline = time.monotonic() + 5
    while _num_processes(own_folder) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _num_processes(own_folder) == 0


def _num_processes(folder: Path) -> int:
    """Processes whose command line names the folder."""
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                count += str(folder).encode() in (entry / "cmdline").read_bytes()
    return count


def test_memory_is_limited() -> None:
    """A list that grows without end is a MemoryError."""
    done = run("x = []\nwhile True: x.append(' ' * 1_000_000)", memory_bytes=200 << 20)
    assert done.ending == "error" and "MemoryError" in done.stderr


def test_a_million_lines_cost_a_bounded_memory() -> None:
    """The beginning and the end are kept, and the writer never waits."""
    done = run("print('\\n'.join(map(str, range(1_000_000))))", output_bytes=2000, timeout_s=60)
    assert done.ending == "ok" and done.num_output_bytes == 6_888_890
    assert done.stdout.startswith("0\n1\n") and done.stdout.endswith("999999\n") and len(done.stdout) < 2200


def test_a_large_file_cannot_be_written() -> None:
    """A file ends at its limit."""
    done = run("open('x', 'wb').write(b' ' * 100_000)", disk_bytes=50_000)
    assert done.ending == "error"


def test_the_environment_stays_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of this process are not handed on."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert "secret" not in run("import os; print(dict(os.environ))").stdout


def test_cancelling_kills_the_run(own_folder: Path) -> None:
    """Nobody waits for it, so it ends."""

    async def main() -> None:
        task = asyncio.ensure_future(run_python("import time; time.sleep(60)"))
        while not _num_processes(own_folder):
            await asyncio.wait({task}, timeout=0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert _num_processes(own_folder) == 0 and not list(own_folder.iterdir())


def test_runs_at_once_do_not_mix() -> None:
    """Each has its own streams and folder."""

    async def main() -> list[str]:
        runs = await asyncio.gather(*(run_python(f"open('x', 'x').close(); print({n})") for n in range(6)))
        return [done.stdout for done in runs]

    assert asyncio.run(main()) == [f"{n}\n" for n in range(6)]


def test_where_there_are_no_walls_what_could_be_done_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody on a Mac is sent to install bubblewrap."""
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UserError, match=r"on Linux alone, and this is darwin: .* container .* sandbox: none") as caught:
        walls("required")
    assert "bubblewrap" not in str(caught.value)
    assert walls("none").kind == "none"


def test_limits_are_positive() -> None:
    """A limit of nothing is a mistake."""
    with pytest.raises(UserError, match="timeout_s=0 must be more than 0"):
        SandboxLimits(timeout_s=0)


def test_what_uses_too_much_in_sum_is_killed_and_says_so() -> None:
    """Each of its processes stays below the limit, as the error says."""
    child = "    if os.fork() == 0: x = b'x' * (80 << 20); time.sleep(9)"
    code = f"import os, time\nfor _ in range(4):\n{child}\ntime.sleep(9)"
    done = run(code, memory_bytes=200 << 20, timeout_s=8.0)
    assert (done.ending, done.exit_code) == ("error", 137)
    assert re.search(r"Killed: \d+ MiB of memory in \d processes; 200 are allowed", done.stderr)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            ("sh", "-c", "echo no memory >&2; exit 3"),
            "it ended with exit status 3: no memory. The program has no result",
        ),
        (("sleep", "60"), r"it did not start within 0\.2 s\. The program has no result"),
    ],
)
def test_code_that_did_not_begin_has_no_result(
    command: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an error, and no run that failed or took too long."""
    monkeypatch.setattr(module, "START_S", 0.2 if command[0] == "sleep" else 20.0)
    monkeypatch.setattr(Walls, "start", lambda *_: (list(command), {}))
    with pytest.raises(BackendError, match=said):
        run("print(1)", walled="none")
