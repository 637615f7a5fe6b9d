from pathlib import Path

import pytest

from ludus.engines.lease import ComputeLease
from ludus.errors import UserError
from ludus.loop.sft import SftSettings, conversation_sequences, supervised_batches, train_conversations
from ludus.models.load import load_model
from ludus.models.settings import ModelSettings
from ludus.text.chat import ChatText
from ludus.trainer.settings import OptimizerSettings, TrainerSettings
from ludus.trainer.step import ModelTrainer

ROW = {
    "messages": [
        {"role": "user", "content": "Guess."},
        {"role": "assistant", "content": "10"},
        {"role": "user", "content": "higher"},
        {"role": "assistant", "content": "15"},
    ]
}


def test_replies_are_trained_up_to_the_end_of_their_turn(tokenizer_folder: Path) -> None:
    """Each assistant message is one sequence, and its targets read as the reply with its end-of-turn token."""
    text = ChatText.load(tokenizer_folder)
    trained = [
        text.tokenizer.decode([each.token_ids[index] for index in each.target_idx])
        for each in conversation_sequences(ROW, text)
    ]
    assert trained == ["10<|im_end|>", "15<|im_end|>"]


def test_of_a_prompt_and_its_completion_the_completion_is_trained(tokenizer_folder: Path) -> None:
    """As of the last reply in the whole conversation; a completion without a reply is refused."""
    text, messages = ChatText.load(tokenizer_folder), ROW["messages"]
    row = {"prompt": messages[:3], "completion": messages[3:]}
    assert conversation_sequences(row, text) == conversation_sequences(ROW, text)[1:]
    with pytest.raises(UserError, match="row 2: 'completion' has no message of the assistant's"):
        conversation_sequences({**row, "completion": messages[:1]}, text, at="row 2")


def test_the_model_learns_what_it_is_shown(tiny_model_folder: Path) -> None:
    """A few steps on one conversation lower its cross-entropy to a tenth."""
    model = load_model(ModelSettings(path=str(tiny_model_folder), dtype="float32"))
    lease, text = ComputeLease(), ChatText.load(tiny_model_folder)
    trainer = ModelTrainer(model, TrainerSettings(optimizer=OptimizerSettings(lr=1e-2)), lease=lease)
    batches = supervised_batches(text, [ROW], SftSettings(epochs=20), row_tokens=1024, seed=0)
    losses = [train_conversations(trainer, batch, lease)["train/loss"] for batch in batches]
    assert len(losses) == 20
    assert losses[-1] < losses[0] / 10


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"prompt": "Guess."}, "row 0 has no 'messages'"),
        ({"messages": [{"role": "nobody", "content": "Guess."}]}, "row 0 is no conversation"),
        ({"messages": [{"role": "user", "content": "Guess."}]}, "nothing to train on"),
    ],
)
def test_rows_that_cannot_be_trained_are_named(row: dict[str, object], says: str, tiny_model_folder: Path) -> None:
    """A row without a conversation is named by its number; rows without any reply are refused together."""
    with pytest.raises(UserError, match=says):
        list(supervised_batches(ChatText.load(tiny_model_folder), [row], SftSettings(), row_tokens=64, seed=0))
