"""Runs with a teacher: a pupil learns its distribution, from a model, a server, another run, or itself with a hint."""

from __future__ import annotations

import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import openai
import pytest
import torch
import transformers
from safetensors.torch import load_file

import ludus
from ludus.config import Config
from ludus.errors import BackendError, ConfigError, UserError
from ludus.models.settings import ModelSettings
from ludus.text.tokenizer import Tokenizer
from tests.engines.serving.test_server import serving

ROWS = [{"question": f"Guess. It is higher than {bound}.", "answer": f"It is {bound + 1}."} for bound in range(4)]
FIRST = {"kind": "policy", "weights": "first"}


class Talker:
    """One answer of a few tokens, for which there is no reward."""

    async def run(self, data: dict[str, Any], *, base_url: str, api_key: str, http_client: Any) -> float:
        client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
        messages: list[Any] = [{"role": "user", "content": data["question"]}]
        await client.chat.completions.create(model="default", messages=messages, max_tokens=6)
        return 0.0


class Kept(ludus.Observer):
    """Remembers the metrics of every step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []

    def on_step(self, step: int, metrics: Any) -> None:
        self.steps.append(dict(metrics))

    @property
    def kl(self) -> list[float]:
        return [metrics["teacher/kl"] for metrics in self.steps]


def make_config(model: Path, root: Path, /, **changes: Any) -> Config:
    values: dict[str, Any] = {
        "name": "pupil",
        "run_root": str(root),
        "seed": 3,
        "model": {"path": str(model), "dtype": "float32"},
        "engine": {"kv_bytes": 2**22},
        "algorithm": {"name": "distillation"},
        "gconfig": {"n_samples": 4},
        "train_dataset": {"batch_size": 4},
        "trainer": {"optimizer": {"lr": 3e-3}},
        "total_train_steps": 2,
    }
    return Config(**{**values, **changes})


def train(config: Config, **how: Any) -> Kept:
    kept = Kept()
    ludus.Trainer(config, ROWS).train(Talker, observer=kept, **how)
    return kept


def model_teacher(path: Path, **settings: Any) -> dict[str, Any]:
    return {"kind": "model", "path": str(path), "dtype": "float32", **settings}


@pytest.fixture(scope="module")
def teacher_folder(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is surer of what it says: the pupil's kind, of other random weights, its head twice as large."""
    folder = tmp_path_factory.mktemp("teacher")
    shutil.copytree(tiny_model_folder, folder, dirs_exist_ok=True)
    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(21)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(2)
    model.save_pretrained(folder)
    return folder


def test_a_pupil_learns_its_teachers_distribution(
    tiny_model_folder: Path, teacher_folder: Path, tmp_path: Path
) -> None:
    """Though no reward says anything, the divergence of the policy from the teacher falls; every token is trained."""
    how = {"trainer": {"optimizer": {"lr": 1e-2}}, "gconfig": {"n_samples": 8}, "total_train_steps": 14}
    kept = train(make_config(tiny_model_folder, tmp_path, teacher=model_teacher(teacher_folder), **how))
    assert fmean(kept.kl[-6:]) < 0.87 * fmean(kept.kl[:2])
    assert all(metrics["ledger/sampled"] == metrics["ledger/trained"] > 0 for metrics in kept.steps)
    assert all(metrics["time/teacher_s"] > 0 for metrics in kept.steps)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_whom_equals_its_teacher_is_at_no_distance(temperature: float, tiny_model_folder: Path, tmp_path: Path) -> None:
    """The weights of the beginning teach those of the first step nothing, whatever they were sampled with."""
    config = make_config(
        tiny_model_folder, tmp_path, teacher=FIRST, gconfig={"n_samples": 4, "temperature": temperature}
    )
    kept = train(config)
    assert abs(kept.kl[0]) < 1e-5


def test_a_policy_teaches_itself_what_a_hint_says(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Of its own weights, shown the answer, it is another policy; a column of no row teaches nothing."""
    hinted = {"kind": "policy", "hint": {"column": "answer"}}
    kept = train(make_config(tiny_model_folder, tmp_path, teacher=hinted))
    assert kept.kl[0] > 1e-3 and kept.steps[0]["train/grad_norm"] > 0
    elsewhere = {"kind": "policy", "hint": {"column": "no_such"}}
    kept = train(make_config(tiny_model_folder, tmp_path, teacher=elsewhere, name="other"))
    assert abs(kept.kl[0]) < 1e-5


def test_a_teacher_stands_beside_the_task(tiny_model_folder: Path, teacher_folder: Path, tmp_path: Path) -> None:
    """With a weight, and of any algorithm: groups whose rewards agree are trained by the teacher alone."""
    algorithm = {"name": "gspo", "minibatches": 2, "distillation": {"weight": 0.1, "bound": 2.0}}
    kept = train(make_config(tiny_model_folder, tmp_path, teacher=model_teacher(teacher_folder), algorithm=algorithm))
    assert all(metrics["ledger/trained"] == metrics["ledger/sampled"] for metrics in kept.steps)


def test_another_run_teaches(tiny_model_folder: Path, teacher_folder: Path, tmp_path: Path) -> None:
    """By its folder: the model that it ended with, or where there is none its last checkpoint's weights."""
    train(make_config(tiny_model_folder, tmp_path, teacher=model_teacher(teacher_folder), name="first"))
    first = tmp_path / "first"
    ended = train(make_config(first / "model", tmp_path, teacher=model_teacher(first), name="second"))
    assert abs(ended.kl[0]) < 1e-5
    (first / "run.db").unlink()  # nobody needs its episodes
    kept = first.rename(tmp_path / "moved") / "model"
    model = kept.rename(tmp_path / "model")
    broken_off = train(make_config(model, tmp_path, teacher=model_teacher(tmp_path / "moved"), name="third"))
    assert abs(broken_off.kl[0]) < 1e-5
    shutil.rmtree(tmp_path / "moved" / "checkpoints")
    with pytest.raises(UserError, match="has no model and no checkpoint yet"):
        train(make_config(model, tmp_path, teacher=model_teacher(tmp_path / "moved"), name="fourth"))


def test_a_server_teaches(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Over HTTP, with its key; one that serves the pupil's own weights is at no distance from it."""
    tokenizer = Tokenizer.load(tiny_model_folder)
    with serving(ModelSettings(path=str(tiny_model_folder), dtype="float32"), tokenizer, tmp_path, "secret") as url:
        teacher = {"kind": "server", "engine": "server", "urls": [url], "api_key": "secret"}
        kept = train(make_config(tiny_model_folder, tmp_path, teacher=teacher))
    assert abs(kept.kl[0]) < 1e-4 < abs(kept.kl[1])


def test_a_resumed_run_has_its_teacher_again(tiny_model_folder: Path, teacher_folder: Path, tmp_path: Path) -> None:
    """What was broken off after a step ends in the weights of a run that was not."""
    teacher = model_teacher(teacher_folder)
    whole = make_config(tiny_model_folder, tmp_path, teacher=teacher, name="whole")
    train(whole)
    parts = {"teacher": teacher, "name": "parts"}
    train(make_config(tiny_model_folder, tmp_path, total_train_steps=1, **parts))
    train(make_config(tiny_model_folder, tmp_path, **parts), resume=True)
    one, other = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "parts"))
    assert all(one[name].equal(other[name]) for name in one)


def test_teachers_that_cannot_teach_are_refused(tiny_model_folder: Path, teacher_folder: Path, tmp_path: Path) -> None:
    """Nobody, one with other tokens, one that is not there; no run is left behind that stands in the next one's way."""
    with pytest.raises(ConfigError, match=r"needs somebody who teaches: set teacher\.kind"):
        make_config(tiny_model_folder, tmp_path)
    other = shutil.copytree(teacher_folder, tmp_path / "renumbered")
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace('"<|endoftext|>"', '"<|other|>"'))
    with pytest.raises(UserError, match=r"cannot teach this model: the token '<\|endoftext\|>' has the id 0 here"):
        train(make_config(tiny_model_folder, tmp_path, teacher=model_teacher(other)))
    gone = {"kind": "server", "urls": ["http://127.0.0.1:9"]}
    with pytest.raises(BackendError, match=r"no vLLM answers at http://127\.0\.0\.1:9"):
        train(make_config(tiny_model_folder, tmp_path, teacher=gone))
    train(make_config(tiny_model_folder, tmp_path, teacher=FIRST, total_train_steps=1))
