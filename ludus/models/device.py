"""Where a model lives: the processor, a CUDA card, or an Apple GPU.

Knows: which devices torch finds here.  Knows not: models, memory, kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ludus.errors import UserError
from ludus.processes.cards import Card


def use_device(device: torch.device) -> None:
    """From now on `device` is this thread's current one, if it is a card.

    Every thread begins with the first card as its current one; streams, graphs and kernels that are started by hand go
    there, wherever their tensors are.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)


def free_cached(device: torch.device) -> None:
    """Give memory of a card that torch keeps for later, and what another process has read of it, back to the card.

    Waits for what was begun there.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        with torch.cuda.device(device):
            torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.synchronize()
        torch.mps.empty_cache()


def choose_device(name: str) -> torch.device:
    """The device called `name`: auto, cpu, mps, cuda or cuda:N. auto is the current card, or the processor without one.

    Raises UserError if a card is asked for that torch does not find.
    """
    if name == "mps":
        return _apple_gpu()
    num_cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not num_cards):
        return torch.device("cpu")
    if not num_cards:
        why = "finds no card" if torch.version.cuda else "was built without CUDA"
        raise UserError(f"model.device={name!r} is not there: torch {torch.__version__} {why}; use cpu or auto")
    _, _, number = name.partition(":")
    card = int(number) if number else torch.cuda.current_device()
    if card >= num_cards:
        cards = ", ".join(f"cuda:{each}" for each in range(num_cards))
        raise UserError(f"model.device={name!r} is not there; torch finds {cards}")
    return torch.device("cuda", card)


def has_apple_gpu() -> bool:
    """Whether torch computes on an Apple GPU here."""
    return torch.backends.mps.is_available()


def _apple_gpu() -> torch.device:
    if not has_apple_gpu():
        why = "finds none here" if torch.backends.mps.is_built() else "was not built for them"
        raise UserError(f"model.device='mps' is an Apple GPU, and torch {torch.__version__} {why}; use cpu or auto")
    return torch.device("mps", 0)


def card_of(device: torch.device, cards: Sequence[Card]) -> Card | None:
    """Which of the `cards` of this process, as `find_cards` lists them, a CUDA device is. None: the list is empty.

    Found by its uuid, because CUDA may number cards in another order than the driver; by its number if no card of the
    list has that uuid.
    """
    number = device.index or 0
    uuid = str(torch.cuda.get_device_properties(number).uuid)
    known = next((card for card in cards if card.name.partition("-")[2] == uuid), None)
    return known or (cards[min(number, len(cards) - 1)] if cards else None)
