"""The growing token graph of one session, and where a new request belongs in it.

Knows: messages, token ids, the two edges of a turn.  Knows not: text, templates, engines, rewards.
Invariants: the nodes from the root to a turn hold exactly what the engine saw and sampled; a node holds only the
tokens it adds; a sampled node belongs to one turn; a parent precedes its children; a turn comes after those that
its edges name.

A turn has two edges back: `prefix` shares tokens and must be exact; `follows` carries credit, and is kept even where
the tokens change (conversation.py says how it is found).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ludus.episodes.conversation import Conversations, TurnMatch
from ludus.errors import InternalError
from ludus.types import AbortCause, ForkReason, Message, Node, Sampled, Sampling, SessionRecord, ToolSpec, Turn


@dataclass(frozen=True, slots=True)
class GraphStats:
    """The size of a session's graph."""

    num_nodes: int
    num_turns: int
    num_tokens: int
    """Tokens that several turns share are counted once."""


class SessionGraph:
    """The mutable builder of one `SessionRecord`. Safe to use from several threads at once."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._lock = threading.RLock()
        self._nodes: list[Node] = []
        self._ends: list[int] = []  # per node: tokens from the root to its end
        self._children: dict[int | None, list[int]] = {}
        self._contexts: dict[tuple[int | None, tuple[int, ...]], int] = {}
        self._turns: dict[str, Turn] = {}
        self._conversations = Conversations()
        self._tools: list[tuple[ToolSpec, ...]] = []
        self._num_tokens = 0
        self._path: tuple[int, tuple[int, ...]] | None = None
        """The last requested node and its path, which the next turn most often extends. None: none was requested."""

    def __repr__(self) -> str:
        return f"SessionGraph({self._session_id!r}, {self.stats()})"

    def match(self, messages: Sequence[Message], agent: str) -> TurnMatch:
        """The turn that a request with these messages follows, and whether they begin with its conversation."""
        with self._lock:
            return self._conversations.match(messages, agent)

    def begin(self, turn_ids: Sequence[str], messages: Sequence[Message], agent: str, follows: str | None) -> None:
        """These turns are asked with these messages; later `add_turn` or `drop` is called for each."""
        with self._lock:
            asked = self._conversations.enter(messages)
            for turn_id in turn_ids:
                self._conversations.begin(turn_id, asked, agent, follows)

    def drop(self, turn_id: str) -> None:
        """The turn has no answer."""
        with self._lock:
            self._conversations.drop(turn_id)

    def find(self, turn_id: str) -> Turn | None:
        """The turn of this id. None: there is none."""
        with self._lock:
            return self._turns.get(turn_id)

    def begun_with(self, token_ids: Sequence[int]) -> Turn | None:
        """The turn with the longest path that `token_ids` begins with. None: there is none."""
        with self._lock:
            turn_id = next(self._turns_above(self._walk(tuple(token_ids))), None)
            return None if turn_id is None else self._turns[turn_id]

    def path_ids(self, turn_id: str) -> tuple[int, ...]:
        """All tokens of a turn: what the engine saw, then what it sampled."""
        with self._lock:
            return self._path_ids(self._turn(turn_id).node)

    def num_prompt_tokens(self, turn_id: str) -> int:
        """Tokens that the engine was given for a turn."""
        with self._lock:
            turn = self._turn(turn_id)
            return self._ends[turn.node] - len(turn.sampled.token_ids)

    def add_turn(
        self,
        *,
        turn_id: str,
        prompt_ids: Sequence[int],
        prefix: str | None,
        follows: str | None,
        fork: ForkReason | None,
        messages: Sequence[Message],
        reply: Message,
        sampled: Sampled,
        sampling: Sampling,
        agent: str = "",
        tools: Sequence[ToolSpec] = (),
        undecoded: Sequence[str] = (),
        started_at: float = 0.0,
        first_token_at: float = 0.0,
        finished_at: float = 0.0,
        abort_cause: AbortCause | None = None,
    ) -> Turn:
        """Add a finished turn to the graph, and return it.

        prefix: the turn whose tokens `prompt_ids` is known to extend. None: the graph looks for one itself.
        fork: not kept if it is not true: without `follows`, or if the tokens do extend its tokens.
        Raises InternalError if an id is unknown or taken, or the prompt is empty or does not extend `prefix`.
        """
        prompt = tuple(prompt_ids)
        with self._lock:
            if turn_id in self._turns:
                raise InternalError(f"session {self._session_id} already has a turn {turn_id}")
            if not prompt:
                raise InternalError(f"the prompt of turn {turn_id} holds no token, so its first one has no predictor")
            if follows is not None:
                self._turn(follows)
            base = self._walk(prompt) if prefix is None else self._checked_base(turn_id, prompt, prefix)
            is_extended = follows is not None and any(turn == follows for turn in self._turns_above(base))
            asked = self._conversations.enter(messages)
            turn = Turn(
                id=turn_id,
                node=self._add_node(Node(self._add_context(base, prompt), sampled.token_ids, turn_id)),
                prefix=next(self._turns_above(base), None),
                follows=follows,
                fork=None if follows is None or is_extended else fork,
                messages=tuple([step.message for step in asked]),
                reply=self._conversations.intern(reply),
                sampled=sampled,
                sampling=sampling,
                agent=agent,
                started_at=started_at,
                first_token_at=first_token_at,
                finished_at=finished_at,
                tools=self._intern_tools(tuple(tools)),
                undecoded=tuple(undecoded),
                abort_cause=abort_cause,
            )
            self._turns[turn_id] = turn
            self._conversations.add(turn, asked)
            return turn

    def break_off(self, turn_id: str, cause: AbortCause) -> None:
        """Mark a turn as aborted: its answer is complete, but reached no client."""
        with self._lock:
            turn = self._turn(turn_id)
            broken = replace(turn, sampled=replace(turn.sampled, stop_reason="abort"), abort_cause=cause)
            self._turns[turn_id] = broken
            self._conversations.break_off(broken)

    def nodes_from(self, start: int) -> tuple[Node, ...]:
        """The nodes from index `start` on, in the order in which they were added."""
        with self._lock:
            return tuple(self._nodes[start:])

    def snapshot(self) -> SessionRecord:
        """The graph as it is now, frozen; turns in the order in which they were added."""
        with self._lock:
            return SessionRecord(self._session_id, tuple(self._nodes), tuple(self._turns.values()))

    def stats(self) -> GraphStats:
        with self._lock:
            return GraphStats(num_nodes=len(self._nodes), num_turns=len(self._turns), num_tokens=self._num_tokens)

    def _turn(self, turn_id: str) -> Turn:
        if turn_id not in self._turns:
            raise InternalError(f"session {self._session_id} has no turn {turn_id}; it has {list(self._turns)}")
        return self._turns[turn_id]

    def _path_ids(self, node: int) -> tuple[int, ...]:
        known, path = (None, ()) if self._path is None else self._path
        parts: list[tuple[int, ...]] = []
        at: int | None = node
        while at is not None and at != known:
            parts.append(self._nodes[at].token_ids)
            at = self._nodes[at].parent
        new = tuple(itertools.chain.from_iterable(reversed(parts)))
        self._path = (node, path + new if at is not None else new)
        return self._path[1]

    def _turns_above(self, node: int | None) -> Iterator[str]:
        """The turns that sampled tokens on the path to `node`, the nearest first."""
        while node is not None:
            turn_id = self._nodes[node].turn_id
            if turn_id is not None:
                yield turn_id
            node = self._nodes[node].parent

    def _checked_base(self, turn_id: str, prompt: tuple[int, ...], prefix: str) -> int:
        node = self._turn(prefix).node
        path = self._path_ids(node)
        if prompt[: len(path)] != path:
            raise InternalError(
                f"the prompt of turn {turn_id} ({len(prompt)} tokens) does not extend "
                f"the {len(path)} tokens of turn {prefix}"
            )
        return node

    def _walk(self, prompt: tuple[int, ...]) -> int | None:
        """The end of the longest chain of whole nodes that `prompt` begins with; of equally long ones that with the
        fewest children. None: there is none."""
        best: int | None = None
        best_end = 0
        open_nodes: list[tuple[int | None, int]] = [(None, 0)]
        while open_nodes:
            parent, start = open_nodes.pop()
            for node in self._children.get(parent, ()):
                end = self._ends[node]
                if end <= len(prompt) and prompt[start:end] == self._nodes[node].token_ids:
                    open_nodes.append((node, end))
                    num_before = len(self._children.get(best, ()))
                    if end > best_end or (end == best_end and len(self._children.get(node, ())) < num_before):
                        best, best_end = node, end
        return best

    def _add_context(self, base: int | None, prompt: tuple[int, ...]) -> int | None:
        """The node at the end of `prompt`, reached from `base`; equal context after the same node is stored once."""
        rest = prompt[0 if base is None else self._ends[base] :]
        if not rest:
            return base
        if (base, rest) not in self._contexts:
            self._contexts[base, rest] = self._add_node(Node(base, rest))
        return self._contexts[base, rest]

    def _add_node(self, node: Node) -> int:
        index = len(self._nodes)
        self._nodes.append(node)
        self._num_tokens += len(node.token_ids)
        self._ends.append((0 if node.parent is None else self._ends[node.parent]) + len(node.token_ids))
        self._children.setdefault(node.parent, []).append(index)
        return index

    def _intern_tools(self, tools: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
        for known in self._tools:
            if known == tools:
                return known
        self._tools.append(tools)
        return tools
