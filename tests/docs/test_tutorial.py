"""docs/tutorial.md and README.md, followed in an empty folder, with a tiny random model for the one that pip brings."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ludus.processes.address import free_port
from tests.cli.conftest import Ended, ludus
from tests.docs.pages import DOCS

__all__ = ["ludus"]  # a fixture

TEXT = (DOCS / "tutorial.md").read_text()
FILES = re.findall(r"[Ss]ave this as `([\w.]+)`:\n```\w+\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
COMMANDS = re.findall(r"^\$ (.*)", TEXT, re.MULTILINE)
SMALLEST = shlex.split("total_train_steps=1 train_dataset.batch_size=2 gconfig.n_samples=2 eval_gconfig.n_samples=1")


@contextmanager
def serving(command: str, link: str) -> Iterator[str]:
    """Where a command that serves until Ctrl-C says that it does."""
    words = shlex.split(command.replace("ludus", f"{sys.executable} -m ludus", 1))
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = ""
            while not (found := re.search(link, said)):
                line = process.stdout.readline()
                assert line, said
                said += line
            yield found[0]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


@pytest.fixture
def empty_folder(tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; the tiny model is where the embedded one would be."""
    embedded = tmp_path / "cache" / "ludus" / "models" / "smollm2-135m"
    embedded.parent.mkdir(parents=True)
    embedded.symlink_to(tiny_model_folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.timeout(900)  # six programs that load torch
def test_every_step_works(ludus: Callable[..., Ended], empty_folder: Path) -> None:
    """From the installed package on: files are saved, commands are typed, in the order of the page."""
    assert [name for name, _ in FILES] == ["agent.py", "run.yaml", "ask.py"]
    for name, text in FILES:
        Path(name).write_text(text)

    look, train, watch, evaluate, gateway, curl, ask = COMMANDS[4:]
    looked = ludus(*shlex.split(look)[1:])
    assert looked.code == 0 and "6 episodes, mean reward" in looked.out
    trained = ludus(*shlex.split(train)[1:], *SMALLEST)
    assert trained.code == 0 and "done: 1 steps" in trained.out, trained.err
    with serving(f"{watch} --no-open", r"http://\S+") as page:
        assert page.endswith("#/run/letters")
    evaluated = ludus(*shlex.split(evaluate)[1:])
    assert evaluated.code == 0 and "success" in evaluated.out
    port = str(free_port("127.0.0.1"))
    with serving(gateway.replace("8124", port), r"http://\S+/v1"):
        said = subprocess.run(
            shlex.split(curl.replace("8124", port)), capture_output=True, text=True, check=True
        ).stdout
        assert '"role":"assistant"' in said
    asked = subprocess.run([sys.executable, *shlex.split(ask)[1:]], capture_output=True, text=True)
    assert ask.startswith("python ") and asked.returncode == 0, asked.stderr


@pytest.mark.timeout(300)
def test_the_readme_works(ludus: Callable[..., Ended], empty_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its agent with its row and its look at it, and the run in Python."""
    text = (DOCS.parent / "README.md").read_text()
    agent, script = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    [row] = re.findall(r"`rows.jsonl` holds one row per line, such as `(.*?)`", text)
    [look] = re.findall(r"^\.venv/bin/ludus (rollout .*?) +#", text, re.MULTILINE)
    Path("agent.py").write_text(agent)
    Path("rows.jsonl").write_text(row + "\n")
    looked = ludus(*shlex.split(look))
    assert looked.code == 0 and "1 episodes, mean reward" in looked.out, looked.err
    exec(script, {})
    assert "runs/mine/model" in capsys.readouterr().out.splitlines()[-1]


def test_what_is_typed_first_is_what_there_is() -> None:
    """The packages by the names of their groups, the pins, and the model."""
    environment, activate, install, get = COMMANDS[:4]
    assert (environment, activate) == ("python3 -m venv .venv", ". .venv/bin/activate")
    assert install == "pip install -c ../ludus/constraints.txt '../ludus[train,recipes]'"
    assert (DOCS.parent / "constraints.txt").exists() and get == "ludus models get smollm2-135m"
    packages = (DOCS.parent / "pyproject.toml").read_text()
    assert "\ntrain = [" in packages and "\nrecipes = [" in packages
