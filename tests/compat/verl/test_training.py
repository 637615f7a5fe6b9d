"""Agent loops trained through the public surface: a tiny model, rows that name their loop, two engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ludus
from ludus.compat.config import load_config
from ludus.compat.verl import AgentLoopBase, AgentLoopOutput, register
from ludus.runs.store import RunStore

ROWS = [
    {"prompt": [{"role": "user", "content": f"Guess. It is higher than {bound}."}], "agent_name": name}
    for bound in range(2)
    for name in ("vowels_agent", "tool_agent")
]
SCORE = "def compute_score(**given):\n    return sum(letter in 'aeiou' for letter in given['solution_str']) / 6\n"


@register("vowels_agent")
class Vowels(AgentLoopBase):
    """Two contexts, each an output; of the first answer's tokens the first is not to be trained."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[AgentLoopOutput]:
        outputs = []
        for number in range(2):
            prompt_ids = await self.apply_chat_template(
                kwargs["raw_prompt"] + [{"role": "user", "content": f"{number}"}]
            )
            answer = await self.server_manager.generate(
                kwargs["uid"], prompt_ids=prompt_ids, sampling_params={**sampling_params, "max_tokens": 6}
            )
            text = self.tokenizer.decode(answer, skip_special_tokens=True)
            outputs.append(
                AgentLoopOutput(
                    prompt_ids=prompt_ids,
                    response_ids=answer.token_ids,
                    response_mask=[number] + [1] * (len(answer) - 1),
                    reward_score=sum(letter in "aeiou" for letter in text) / 6,
                    num_turns=2,
                )
            )
        return outputs


def test_rows_train_with_the_loops_that_they_name(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Every sampled token is accounted for, tokens that a loop leaves out by name; two engines share the weights."""
    (tmp_path / "score.py").write_text(SCORE)
    config = ludus.Config(
        name="loops",
        run_root=str(tmp_path),
        seed=3,
        model={"path": str(tiny_model_folder), "dtype": "float32", "chat_template": "chatml-tools"},
        engine={"kv_bytes": 2**22, "replicas": 2},
        gconfig={"n_samples": 3},
        rollout={"response_length": 24, "multi_turn": {"max_assistant_turns": 2}},
        reward={"custom_reward_function": {"path": str(tmp_path / "score.py")}},
        train_dataset={"batch_size": 4, "shuffle": False},
        trainer={"optimizer": {"lr": 1e-3}},
        total_train_steps=2,
    )
    summary = ludus.Trainer(config, ROWS).train()
    ledger = summary.ledger
    assert summary.steps == 2 and ledger.sampled == ledger.trained + sum(ledger.masked.values())
    assert ledger.masked["left_out"] == 2 * 2 * 3, "two steps, two rows of that loop, three samples, one token"
    with RunStore.open(tmp_path / "loops") as store:
        episodes = list(store.episodes())
    assert {episode.outcome.kind for episode in episodes} == {"ok"}
    for episode in episodes:
        assert all(len(turn.sampled.token_ids) <= 24 for turn in episode.session.turns)
    assert {version for episode in episodes for turn in episode.session.turns for version in turn.sampled.versions} == {
        0,
        1,
    }


def test_rows_with_prompts_that_are_too_long_do_not_stop_a_run(tiny_model_folder: Path, tmp_path: Path) -> None:
    """As in verl with `data.filter_overlong_prompts`: eight samples of one row, played twice, would be the failures in
    a row that end a run."""
    (tmp_path / "score.py").write_text(SCORE)
    long = {"prompt": [{"role": "user", "content": "Guess. " * 60}], "agent_name": "single_turn_agent"}
    short = [{**long, "prompt": [{"role": "user", "content": f"Guess {number}."}]} for number in range(2)]
    config = load_config(
        None,
        [
            *(f"run_root={tmp_path}", "trainer.experiment_name=filtered", "data.train_batch_size=2"),
            *(f"actor_rollout_ref.model.path={tiny_model_folder}", "model.dtype=float32", "engine.kv_bytes=4194304"),
            *("data.max_prompt_length=100", "data.max_response_length=4", "data.filter_overlong_prompts=True"),
            *("actor_rollout_ref.rollout.n=8", "data.shuffle=False", "trainer.total_training_steps=1"),
            f"custom_reward_function.path={tmp_path / 'score.py'}",
        ],
    )
    summary = ludus.Trainer(config, [long, *short]).train()
    assert summary.steps == 1 and summary.ledger.sampled > 0
    with RunStore.open(tmp_path / "filtered") as store:
        assert {each.outcome.kind for each in store.episodes() if "row0" not in each.task_id} == {"ok"}
