"""The models of a run, asked by name: which weights answer, what they are asked, where it is kept."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

import ludus
from ludus.api.sampler import RunSampler
from ludus.api.trainer import Trainer
from ludus.config import Config
from ludus.errors import AgentError, UserError
from ludus.models.load import load_model
from ludus.models.settings import ModelSettings
from ludus.runs.store import RunStore
from ludus.runs.watch.branches import Branches, demonstrations
from ludus.runs.watch.question import BRANCH, Edit, Past, Question, Said
from tests.api.test_recorded_tokens import ROWS, LettersAgent, config_of


@pytest.fixture(scope="module")
def run(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps in bf16, of which the last two are kept, and the model that was trained."""
    root = tmp_path_factory.mktemp("runs")
    config = config_of(tiny_model_folder, root, total_train_steps=3, checkpoint={"every_steps": 1, "keep": 2})
    config = config.model_copy(update={"model": ModelSettings(path=str(tiny_model_folder), dtype="bfloat16")})
    Trainer(config, ROWS).train(LettersAgent)
    return root / "run"


def answers(run: Path, *questions: Question) -> list[list[dict[str, Any]]]:
    """The events of each question, asked one after the other."""

    async def ask() -> list[list[dict[str, Any]]]:
        sampler = RunSampler(run)
        try:
            return [[event async for event in sampler.answer(question)] for question in questions]
        finally:
            await sampler.close()

    return asyncio.run(ask())


def branch(run: Path, model: str, name: str = "b-00", *, turn: int = 1, edit: Edit | None = None) -> Question:
    """Of a turn of the run's first episode."""
    with RunStore.look(run) as store:
        episode = store.episode_at(1)
    past = Past(num=1, turn=episode.session.turns[turn].id, edit=edit)
    about = {"from": {"episode": episode.id, "turn": past.turn}, "model": model, "edit": None, "created_at": 0.0}
    return Question(session=name, group=name[:-3], model=model, past=past, metadata={BRANCH: about})


def test_the_weights_of_a_step_are_those_that_sampled(run: Path) -> None:
    """Of the last step the model that the run has saved, bit for bit, though its checkpoint holds masters in fp32; an
    earlier step has others, and the base those of the beginning."""
    sampler = RunSampler(run)
    from ludus.loop.checkpoint import checkpoints

    found = {each.folder.name: each for each in checkpoints(run / "checkpoints")}
    assert sorted(found) == ["step-000002", "step-000003"]
    loaded = {name: sampler._load(name, found.get(name))[0].trainable for name in (*found, "base", "final")}
    base = load_model(ModelSettings(path=str(sampler._config.model.path), dtype="bfloat16")).trainable

    def is_equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
        return all(torch.equal(one[name], other[name]) for name in one)

    assert is_equal(loaded["step-000003"], loaded["final"]) and is_equal(loaded["base"], base)
    assert not is_equal(loaded["step-000002"], loaded["step-000003"])
    assert not is_equal(loaded["step-000002"], loaded["base"])


def test_a_branch_goes_on_from_the_very_tokens_of_its_turn(run: Path) -> None:
    """What the model sees of an unchanged turn is what it saw then, sampled tokens included; the run is only read, and
    the answer is kept in a run beside it, with all that happened before it."""
    files = {path: hashlib.sha256(path.read_bytes()).digest() for path in sorted(run.glob("*")) if path.is_file()}
    *deltas, done = answers(run, branch(run, "step-000002"))[0]
    with RunStore.look(run) as store:
        turn = store.episode_at(1).session.turns[1]
        prompt = store.episode_at(1).session.path_ids(turn.node)[: -len(turn.sampled.token_ids)]
    seen = [token["id"] for token in done["tokens"] if token["kind"] == "prompt"]
    assert tuple(seen) == prompt and "".join(each["delta"] for each in deltas) == done["text"]
    sampled = [token for token in done["tokens"] if token["kind"] == "sampled"]
    assert sampled and all(token["mask"] is None and len(token["alternatives"]) == 5 for token in sampled)
    assert {token["version"] for token in sampled} == {2}
    with RunStore.look(run / "branches") as kept:
        episode = kept.episode("b-00")
        assert [len(each.messages) for each in episode.session.turns] == [1, 3] and episode.is_eval
        assert episode.session.path_ids(episode.session.turns[-1].node) == tuple(each["id"] for each in done["tokens"])
        assert kept.credit() == {} and kept.name == "branches"
    assert {path: hashlib.sha256(path.read_bytes()).digest() for path in files} == files
    (listed,) = Branches(run, lambda: None).listed()
    assert listed["id"] == "b" and [each["text"] for each in listed["samples"]] == [done["text"]]


def test_an_edited_message_is_what_the_model_is_told(run: Path) -> None:
    """In the middle of the past as at its end; what is no message of the turn is refused."""
    first, last = answers(
        run,
        branch(run, "base", "c-00", edit=Edit(message_index=0, content="Say nothing.")),
        branch(run, "final", "d-00", edit=Edit(message_index=2, content="Why not?")),
    )
    for events, text in ((first, "Say nothing."), (last, "Why not?")):
        assert text in "".join(token["text"] for token in events[-1]["tokens"] if token["kind"] == "prompt")
    with pytest.raises(UserError, match="message 7, and the turn was asked with 3"):
        answers(run, branch(run, "base", "e-00", edit=Edit(message_index=7, content="x")))


def test_a_chat_goes_on_and_is_kept(run: Path) -> None:
    """The second question extends the tokens of the first; two models answer side by side, each in its own session."""
    said: tuple[Said, ...] = (Said(role="user", content="Guess."),)

    def question(model: str, messages: tuple[Said, ...]) -> Question:
        return Question(
            session=f"chat-1-{model}", group="chat-1", model=model, messages=messages, max_tokens=5, temperature=0.0
        )

    async def talk() -> list[dict[str, Any]]:
        sampler = RunSampler(run)
        try:
            first = [[event async for event in sampler.answer(question(each, said))][-1] for each in ("base", "final")]
            again = (*said, Said(role="assistant", content=first[0]["text"]), Said(role="user", content="Lower."))
            return [*first, [event async for event in sampler.answer(question("base", again))][-1]]
        finally:
            await sampler.close()

    one, other, two = asyncio.run(talk())
    ids = [[token["id"] for token in each["tokens"]] for each in (one, two)]
    assert ids[1][: len(ids[0])] == ids[0] and len(ids[1]) - len(ids[0]) > 0
    assert [token["id"] for token in other["tokens"]] != ids[0]
    with RunStore.look(run / "branches") as kept:
        assert kept.episode("chat-1-base").is_greedy
        assert len(kept.episode("chat-1-base").session.turns) == 2
        assert len(kept.episode("chat-1-final").session.turns) == 1


def test_what_was_chosen_is_what_supervised_training_takes(run: Path, tmp_path: Path) -> None:
    """The answer is trained, and of what was said before nothing."""
    done = answers(run, branch(run, "final", "f-00"))[0][-1]
    branches = Branches(run, lambda: None)
    assert not list(demonstrations(run))
    assert branches.choose("f", 0, is_chosen=True) and not branches.choose("f", 1, is_chosen=True)
    (row,) = demonstrations(run)
    assert [message["role"] for message in row["prompt"]] == ["user", "assistant", "user"]
    assert [message["content"] for message in row["completion"]] == [done["reply"]["content"]]
    config = Config(model=ModelSettings(path=str(run / "model"), dtype="float32"), engine={"kv_bytes": 2**22})
    seen: list[dict[str, float]] = []
    assert ludus.train_supervised(config, [row], tmp_path / "m", on_step=lambda _, metrics: seen.append(metrics)) == 1
    assert branches.choose("f", 0, is_chosen=False) and not list(demonstrations(run))


def test_a_model_that_is_not_there_is_refused(run: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint 'step-000001'"):
        answers(run, branch(run, "step-000001", "g-00"))


def test_one_process_writes_the_answers(run: Path) -> None:
    """A second one is told who has them."""

    async def both() -> None:
        first, second = RunSampler(run), RunSampler(run)
        try:
            assert [event async for event in first.answer(branch(run, "base", "h-00"))]
            with pytest.raises((UserError, AgentError), match="writing the run"):
                _ = [event async for event in second.answer(branch(run, "base", "i-00"))]
        finally:
            await first.close()
            await second.close()

    asyncio.run(both())


def test_keys_of_other_versions_and_of_users_are_not_in_the_way(run: Path, tmp_path: Path) -> None:
    """What models need is read; a configuration without it is named."""
    for text in (f"model: {{path: {run / 'model'}, dtype: float32}}\nold: 1\nconfig_class: gone.Gone\n", "old: 1\n"):
        (tmp_path / "config.yaml").write_text(text)
        if "model" in text:
            assert RunSampler(tmp_path)._load("base", None)[0].head_weight.dtype == torch.float32
        else:
            with pytest.raises(UserError, match="names no model"):
                RunSampler(tmp_path)
