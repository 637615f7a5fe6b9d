"""Where a model is put."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ludus.errors import ConfigError, UserError
from ludus.models.device import card_of, choose_device, use_device
from ludus.models.load import load_model
from ludus.models.settings import ModelSettings
from ludus.processes.cards import Card


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two cards, of which the second is current, as torch would report them."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


@pytest.fixture
def no_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_auto_takes_a_card_if_there_is_one(cards: None) -> None:
    """auto and cuda are the current card, a number names one, and the processor can still be asked for."""
    names = ("auto", "cuda", "cuda:0", "cpu")
    assert [str(choose_device(name)) for name in names] == ["cuda:1", "cuda:1", "cuda:0", "cpu"]


def test_auto_is_the_processor_without_a_card(no_cards: None) -> None:
    """Nothing has to be set where there is no card."""
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")


def test_a_card_that_is_not_there_is_named(no_cards: None) -> None:
    """The message says what was asked for, and what would work."""
    with pytest.raises(UserError, match=r"model\.device='cuda:0' is not there: .* use cpu or auto"):
        choose_device("cuda:0")


def test_a_card_too_many_lists_those_there_are(cards: None) -> None:
    """A number beyond the last card is answered with the cards."""
    with pytest.raises(UserError, match="'cuda:2' is not there; torch finds cuda:0, cuda:1"):
        choose_device("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "CPU", "cuda:-1"])
def test_another_name_is_no_device(name: str) -> None:
    """Names are checked when the settings are read, long before a model is loaded."""
    with pytest.raises(ConfigError, match="device"):
        ModelSettings(device=name)


def test_the_model_is_where_it_was_asked_for(tiny_model_folder: Path, no_cards: None) -> None:
    """Every parameter and buffer is on the chosen device, and a missing card is told before anything is read."""
    model = load_model(ModelSettings(path=str(tiny_model_folder), device="cpu"))
    assert {each.device.type for each in (*model.module.parameters(), *model.module.buffers())} == {"cpu"}
    with pytest.raises(UserError, match="cuda"):
        load_model(ModelSettings(path=str(tiny_model_folder), device="cuda"))


@pytest.mark.parametrize(("name", "made_current"), [("cuda:1", [torch.device("cuda:1")]), ("cpu", [])])
def test_a_threads_current_card_is_set(
    name: str, made_current: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only if it is a card: each thread begins with the first."""
    seen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", seen.append)
    use_device(torch.device(name))
    assert seen == made_current


def test_a_card_is_known_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA counts in another order than the driver; by number only where the driver tells no uuids."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(uuid=f"b{1 - number}-c"))
    listed = [Card("GPU-b0-c", 24), Card("GPU-b1-c", 80)]
    assert [card_of(torch.device("cuda", number), listed) for number in (0, 1)] == [listed[1], listed[0]]
    unnamed = [Card("3", None), Card("1", None)]
    assert [card_of(torch.device("cuda", number), unnamed) for number in (0, 1)] == unnamed
    assert card_of(torch.device("cuda", 0), ()) is None
