"""The types that the folders exchange: chat messages, engine calls, turns, episodes, groups.

Knows: nothing but the standard library.  Knows not: HTTP, tensors, templates.
Invariant: every record is frozen, and parallel sequences inside one record have equal length.

    ChatRequest → Call → Sampled → Turn → SessionRecord → Episode → Group → (Batch, in algorithms/pack.py)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

ChatRole = Literal["system", "developer", "user", "assistant", "tool"]
StopReason = Literal["stop", "length", "abort"]
FinishReason = Literal["stop", "length", "tool_calls", "abort"]
AbortCause = Literal["client_cancel", "session_closed", "deadline", "failed"]
ForkReason = Literal["reasoning_stripped", "template", "edit", "retokenised", "truncated"]
ToolChoice = Literal["auto", "none", "required"]
OutcomeKind = Literal["ok", "rejected", "failed", "timeout", "truncated", "cancelled", "lost"]

MAX_KEPT_IDS = 512
"""The set of ids that a token was drawn from is recorded only up to this size."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool by the model. `arguments` is JSON text, kept as it was sampled or sent."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message, the same for every wire protocol. Text and structure, no tokens."""

    role: ChatRole
    content: str | None = None
    """None: the message has no text part (an assistant that only calls tools)."""
    reasoning: str | None = None
    """None: there is no reasoning. An empty thinking block is ''."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """Set only for role 'tool': the call that this message answers."""
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool the model may call. `parameters` is a JSON schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False
    """Constrain the arguments of every call to `parameters` while they are sampled."""


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """Constrains an answer to JSON while it is sampled."""

    schema: Mapping[str, Any] | None = None
    """JSON schema. None: any JSON object."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one answer is drawn. The defaults sample the model's own distribution."""

    temperature: float = 1.0
    """0 means greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    """None: the engine draws a seed, which the record keeps."""
    max_new_tokens: int | None = None
    """None: as many as fit into the model's context."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    """In addition to the model's own end-of-turn ids."""
    ignore_eos: bool = False
    """Do not end at the model's own end-of-turn ids, for answers of a given length in benchmarks."""
    top_logprobs: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, value added to its logit before the temperature), sorted by id, without duplicates."""
    grammar: str | None = None
    """Grammar that constrains the answer, in llguidance's variant of Lark. None: unconstrained."""

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def truncates(self) -> bool:
        """Whether tokens are cut from the distribution by top-p, top-k or min-p."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0

    @property
    def is_models_own(self) -> bool:
        """Whether tokens are drawn from the model's own distribution: no logit is changed and no token left out."""
        is_changed = self.penalises or self.truncates or self.logit_bias or self.grammar is not None
        return self.temperature == 1.0 and not is_changed

    @property
    def cuts(self) -> bool:
        """Whether tokens are drawn from a part of the vocabulary. False for greedy answers, which are not drawn."""
        return not self.is_greedy and (self.truncates or self.grammar is not None)

    @property
    def penalises(self) -> bool:
        """Whether logits depend on earlier tokens, through a presence, frequency or repetition penalty."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0

    def stop_ids(self, eos_ids: frozenset[int]) -> frozenset[int]:
        """Ids that end an answer of a model whose own end-of-turn ids are `eos_ids`."""
        return frozenset(self.stop_token_ids) | (frozenset() if self.ignore_eos else eos_ids)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What an agent asked for, independent of the wire protocol."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    sampling: Sampling = Sampling()
    n: int = 1
    tool_choice: ToolChoice = "auto"
    """`none` with tools: the model sees the tools, and its answer is content even if it looks like a call."""
    forced_tool: str | None = None
    """With `required`: the one tool that must be called. None: any of them."""
    parallel_tool_calls: bool = True
    """False: an answer ends after its first call."""
    response_format: ResponseFormat | None = None
    """None: free text."""
    reasoning_effort: str | None = None
    """How much to think before the answer, in the caller's term; 'none' and 'minimal': not at all. None: not given."""
    thinking_budget: int | None = None
    """Most tokens of thinking, for templates that tell the model. None: not given."""
    continues: str | None = None
    """Id of the turn to continue: its messages and its reply come before the messages of this request (but after its
    instructions). None: the messages are the whole conversation."""
    keeps_tools: bool = False
    """With `continues`: offer the tools of that turn again; `tools` is empty."""
    num_instructions: int = 0
    """How many of the first messages apply to this request only; a request that continues its turn omits them."""
    prompt: str | tuple[int, ...] | None = None
    """Text or token ids for the model to continue, instead of messages in a template. None: there are messages."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    agent: str = ""
    """Tag of the asking agent inside the episode; '' is the main agent."""
    retry_key: str | None = None
    """Two requests with the same key are one request sent twice. None: never a retry."""


@dataclass(frozen=True, slots=True)
class Call:
    """What an engine is asked: prompt token ids and sampling parameters, nothing about chat."""

    id: str
    session_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    group_id: str | None = None
    """Calls of one group share their prompt. None: the call belongs to no group."""
    adapter: str | None = None
    """None: the base weights (or the one adapter that is being trained)."""
    deadline_at: float | None = None
    """time.monotonic() after which the engine aborts the call. None: no deadline."""
    num_answered: int = 0
    """How many tokens at the end of the prompt already belong to this answer, which another engine began."""

    def num_new_tokens(self, context_length: int) -> int:
        """Most tokens that the answer may have in a context of that length; 0 if the prompt fills it."""
        room = max(0, context_length - len(self.prompt_ids))
        most = self.sampling.max_new_tokens
        return room if most is None else min(room, most)


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """Tokens that an engine has just sampled for one call, in order."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.logprobs) == len(self.versions):  # one chunk for every token sampled
            raise _unequal_length(self, "token_ids", "logprobs", "versions")


@dataclass(frozen=True, slots=True)
class Sampled:
    """What an engine returned. `logprobs[i]` is that of `token_ids[i]` under the distribution sampled from."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    """Version of the weights that sampled each token."""
    stop_reason: StopReason
    seed: int = 0
    """The seed that reproduces this sample."""
    stop_string: str | None = None
    """The stop string that ended the sample, if one did; its tokens are in `token_ids`."""
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """For each token the most likely (id, logprob) pairs; empty if not asked for."""
    num_cached_tokens: int = 0
    """Prompt tokens whose keys and values were already cached."""
    kept_ids: tuple[tuple[int, ...] | None, ...] = ()
    """For each token the sorted ids it was drawn from; empty if the sampling cuts nothing. An entry is None if there
    were more than MAX_KEPT_IDS, or if the engine does not report them."""
    prefill_s: float | None = field(default=None, compare=False)
    """From the start of the prompt's processing, after any waiting, to the first token. None: not reported by the
    engine."""

    def __post_init__(self) -> None:
        length = len(self.token_ids)
        if not length == len(self.logprobs) == len(self.versions):
            raise _unequal_length(self, "token_ids", "logprobs", "versions")
        if len(self.top_logprobs) not in (0, length) or len(self.kept_ids) not in (0, length):
            raise _unequal_length(self, "token_ids", "top_logprobs", "kept_ids")


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the engine started; gauges as of now."""

    version: int
    num_running: int = 0
    num_waiting: int = 0
    num_calls: int = 0
    num_sampled_tokens: int = 0
    num_prefilled_tokens: int = 0
    """Prompt tokens that went through the model."""
    num_cached_tokens: int = 0
    """Prompt tokens whose cached keys and values were reused."""
    num_preemptions: int = 0
    num_stale_kv_tokens: int = 0
    """Cached tokens of running sequences whose keys and values were computed with older weights."""
    num_pages: int = 0
    num_free_pages: int = 0
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a session's token graph, with only the tokens that it adds to its parent's path."""

    parent: int | None
    """Index of the parent node. None: the node starts at the first token of a prompt."""
    token_ids: tuple[int, ...]
    turn_id: str | None = None
    """The turn that sampled these tokens. None: they are context and were not sampled."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call of a session. Its id is the completion id that the agent sees."""

    id: str
    node: int
    """Index of the sampled node; the path from the root to it is what the engine saw and sampled."""
    prefix: str | None
    """The turn whose tokens this one extends; tokens are shared along this edge. None: it starts a path of its own."""
    follows: str | None
    """The turn that this one is a consequence of; reward flows back along this edge. None: it follows no other turn."""
    fork: ForkReason | None
    """Why the tokens do not extend those of the turn `follows`. None: they do, or it follows no turn."""
    messages: tuple[Message, ...]
    reply: Message
    sampled: Sampled
    sampling: Sampling
    agent: str = ""
    started_at: float = 0.0
    """Unix time in seconds, as is `finished_at`. Within a session these never go back, and no two requests have an
    equal one: choices of the same request started at the same time, and what was sent after an answer started later."""
    finished_at: float = 0.0
    tools: tuple[ToolSpec, ...] = ()
    undecoded: tuple[str, ...] = ()
    """Raw texts that began as a tool call and could not be parsed; they are also part of the reply's content."""
    abort_cause: AbortCause | None = None
    """Why the answer was aborted: its client left, its session ended, its time was up, or another answer of the same
    request failed. None: it was not aborted, or the engine did so by itself."""
    first_token_at: float = 0.0
    """Unix time in seconds. 0: not known."""

    @property
    def finish_reason(self) -> FinishReason:
        """Why the answer ended, as an agent is told: `tool_calls` only if the model finished its calls itself."""
        if self.sampled.stop_reason == "stop" and self.reply.tool_calls:
            return "tool_calls"
        return self.sampled.stop_reason


UNKNOWN_PROMPT = (0,)
"""Placeholder for the prompt of a model whose tokens are unknown here: a turn's node needs a parent."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The finished token graph of one episode; turns in the order in which they finished."""

    id: str
    nodes: tuple[Node, ...]
    turns: tuple[Turn, ...]

    def path_nodes(self, node: int) -> list[int]:
        """Nodes from the root to `node`, both included."""
        path: list[int] = []
        at: int | None = node
        while at is not None:
            path.append(at)
            at = self.nodes[at].parent
        return path[::-1]

    def path_ids(self, node: int) -> tuple[int, ...]:
        """Token ids from the root to `node`, both included."""
        return tuple(token for at in self.path_nodes(node) for token in self.nodes[at].token_ids)

    def knows_tokens(self, turn: Turn) -> bool:
        """Whether its tokens were recorded. Those of a model that is served elsewhere are not."""
        return bool(turn.sampled.token_ids) or self.path_ids(turn.node) != UNKNOWN_PROMPT

    def path_lengths(self) -> list[int]:
        """For each node the number of tokens from the root to its end; parents precede their children."""
        ends: list[int] = []
        for node in self.nodes:
            ends.append((0 if node.parent is None else ends[node.parent]) + len(node.token_ids))
        return ends

    def chains(self, turns: Sequence[Turn]) -> Iterator[tuple[Turn, ...]]:
        """For each path from the root to a leaf, those of `turns` on it, in order; a turn on several paths appears only
        on the first."""
        left = {turn.node: turn for turn in turns}
        inner: set[int] = set()
        for turn in turns:
            parent = self.nodes[turn.node].parent
            while parent is not None and parent not in inner:
                inner.add(parent)
                parent = self.nodes[parent].parent
        for turn in turns:
            if turn.node in inner:
                continue
            chain: list[Turn] = []
            node: int | None = turn.node
            while node is not None:
                if node in left:
                    chain.append(left.pop(node))
                node = self.nodes[node].parent
            yield tuple(reversed(chain))

    @property
    def num_sampled_tokens(self) -> int:
        return sum(len(turn.sampled.token_ids) for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an episode ended. A failed episode is data, not a log line."""

    kind: OutcomeKind
    reason: str = ""

    @property
    def has_credit(self) -> bool:
        """Whether rewards of such an episode may be trained on: it ended by itself or at one of its limits."""
        return self.kind in ("ok", "truncated")


@dataclass(frozen=True, slots=True)
class Span:
    """Something in an episode that took time and was not a model's answer: a tool, a reward."""

    kind: str
    """`tool`, `reward`, or an agent's own word."""
    name: str
    started_at: float
    """Unix time in seconds, as is `finished_at`."""
    finished_at: float
    inputs: Any = None
    outputs: Any = None
    error: str | None = None
    """None: it did not fail."""
    turn_id: str | None = None
    """The turn that asked for it, if there is one."""
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished session with its rewards."""

    id: str
    task_id: str
    group_id: str
    session: SessionRecord
    rewards: Mapping[str, float]
    """Reward by turn id, for the turns that have one."""
    outcome: Outcome
    reward: float | None = None
    """The number the agent returned, or the sum of the mapping it returned. None: it returned neither."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    started_at: float = 0.0
    finished_at: float = 0.0
    is_eval: bool = False
    left_out: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By turn id: indices of sampled tokens that the agent excluded from training."""
    spans: tuple[Span, ...] = ()
    has_returns: bool = False
    """`rewards` are returns computed by the agent: no reward is propagated back from later turns."""

    @property
    def is_greedy(self) -> bool:
        """Whether every answer was sampled greedily; such an episode serves for comparison and is not trained on."""
        return bool(self.session.turns) and all(turn.sampling.is_greedy for turn in self.session.turns)


@dataclass(frozen=True, slots=True)
class Group:
    """The episodes of one task instance. Statistics are over members by id, never by position."""

    id: str
    task_id: str
    episodes: tuple[Episode, ...]
    source: str = ""
    """Name of the row's dataset. '': there is only one, or none."""
    demonstrations: tuple[Episode, ...] = ()
    """Members that are demonstrations by experts: their tokens were not sampled; they are compared with the others."""


def _unequal_length(record: object, *names: str) -> ValueError:
    lengths = {name: len(getattr(record, name)) for name in names}
    return ValueError(f"{type(record).__name__} holds sequences of unequal length: {lengths}")
