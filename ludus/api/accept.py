"""The user's own filter of complete groups: `should_accept_fn(group) -> bool`.

Knows: groups, and how AReaL's users look at them.  Knows not: advantages, batches.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ludus.episodes.ledger import MaskReason
from ludus.errors import UserError
from ludus.import_strings import import_function
from ludus.rollout.groups import GroupFilter
from ludus.runs.interactions import interactions
from ludus.types import Group

AcceptFn = Callable[[Mapping[str, Any]], Any]

_PADDING = {"input_ids": 0, "attention_mask": 0, "loss_mask": 0, "logprobs": 0.0, "versions": -1}


class GroupView(Mapping[str, Any]):
    """A group as a mapping of torch tensors, each made when it is asked for.

    `rewards`: one number for each episode. `input_ids`, `attention_mask`, `loss_mask`, `logprobs`, `versions`: a row
    for each path of tokens in the episodes, in their order, padded on the right. `episodes`: the members themselves.
    """

    def __init__(self, group: Group) -> None:
        self.group = group

    def __iter__(self) -> Iterator[str]:
        return iter(("rewards", *_PADDING, "episodes"))

    def __len__(self) -> int:
        return len(_PADDING) + 2

    def __getitem__(self, name: str) -> Any:
        episodes = sorted(self.group.episodes, key=lambda episode: episode.id)
        if name == "episodes":
            return tuple(episodes)
        torch = importlib.import_module("torch")
        if name == "rewards":
            return torch.tensor([episode.reward or 0.0 for episode in episodes], dtype=torch.float32)
        if name not in _PADDING:
            raise KeyError(f"{name!r}; a group has {', '.join(self)}")
        rows = [row for episode in episodes for row in interactions(episode, "concat")]
        lengths = [len(row["token_ids"]) for row in rows]
        if name == "attention_mask":
            columns = [[1] * length for length in lengths]
        else:
            columns = [[*row["token_ids" if name == "input_ids" else name]] for row in rows]
        longest = max(lengths, default=0)
        return torch.tensor([each + [_PADDING[name]] * (longest - len(each)) for each in columns])


def accept_filter(should_accept_fn: AcceptFn | str | None) -> GroupFilter | None:
    """The function as a group filter. None: there is no function.

    Raises UserError if it cannot be imported, or is no function.
    """
    if should_accept_fn is None:
        return None
    accept = import_function(should_accept_fn, "should_accept_fn")

    def judge(group: Group) -> MaskReason | None:
        try:
            return None if accept(GroupView(group)) else "not_accepted"
        except Exception as error:  # the boundary of user code
            what = f"{type(error).__name__}: {error}"
            raise UserError(f"should_accept_fn raised on group {group.id!r}: {what}") from error

    return judge
