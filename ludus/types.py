"""The nouns that travel between floors: chat vocabulary, engine calls, turns, episodes, groups.

Knows: nothing but the standard library.  Knows not: HTTP, tensors, templates.
Invariant: every record is frozen, and parallel sequences inside one record have equal length.

    ChatRequest → Call → Sampled → Turn → SessionRecord → Episode → Group → (Batch, in algo.pack)
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
"""Of a token drawn among more than so many and fewer than all, the record does not hold which."""


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
    """None: no reasoning was given; an empty thinking block is ''."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """Set on role 'tool' alone: the call this message answers."""
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool the model may call. `parameters` is a JSON schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False
    """The arguments of every call are held to `parameters` while they are sampled."""


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """JSON that an answer is held to while it is sampled."""

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
    """None: the engine draws a seed, and the record keeps the one it drew."""
    max_new_tokens: int | None = None
    """None: as many as fit into the model's context."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    """In addition to the model's own end-of-turn ids."""
    ignore_eos: bool = False
    """The model's own end-of-turn ids end nothing: an answer of a given length, as benchmarks need it."""
    top_logprobs: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token id and what is added to its logit, before the temperature; each id once, rising."""
    grammar: str | None = None
    """Grammar that the answer is held to, in llguidance's form of Lark. None: free."""

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def truncates(self) -> bool:
        """Some tokens are cut from the distribution (top-p, top-k, min-p)."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0

    @property
    def is_models_own(self) -> bool:
        """Tokens are drawn from the bare model's distribution: nothing changes a logit or leaves a token out."""
        is_changed = self.penalises or self.truncates or self.logit_bias or self.grammar is not None
        return self.temperature == 1.0 and not is_changed

    @property
    def cuts(self) -> bool:
        """Tokens are drawn among fewer than all of the vocabulary; a greedy answer is not drawn at all."""
        return not self.is_greedy and (self.truncates or self.grammar is not None)

    @property
    def penalises(self) -> bool:
        """Logits depend on the tokens before (presence, frequency or repetition penalty)."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0

    def stop_ids(self, eos_ids: frozenset[int]) -> frozenset[int]:
        """Ids that end an answer of a model whose own end-of-turn ids are `eos_ids`."""
        return frozenset(self.stop_token_ids) | (frozenset() if self.ignore_eos else eos_ids)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What an agent asked for, in no wire protocol's words."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    sampling: Sampling = Sampling()
    n: int = 1
    tool_choice: ToolChoice = "auto"
    """`none` with tools: the model sees them and its answer is content, whatever it looks like."""
    forced_tool: str | None = None
    """With `required`: the one tool that is to be called. None: any of them."""
    parallel_tool_calls: bool = True
    """False: an answer ends after its first call."""
    response_format: ResponseFormat | None = None
    """None: free text."""
    reasoning_effort: str | None = None
    """How much to think before the answer, in the caller's word; 'none' and 'minimal': not at all. None: no wish."""
    thinking_budget: int | None = None
    """Most tokens of thinking, for templates that tell the model. None: no wish."""
    continues: str | None = None
    """Turn whose conversation goes on: what was asked there, and its reply, stand before all messages but the
    instructions. None: the messages are the whole conversation."""
    keeps_tools: bool = False
    """With `continues`: the tools of that turn are offered again, and `tools` is empty."""
    num_instructions: int = 0
    """So many of the first messages hold for this request alone; who continues its turn does not get them."""
    prompt: str | tuple[int, ...] | None = None
    """Text or token ids that the model is to go on with, in place of messages in a template. None: there are
    messages."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    agent: str = ""
    """Tag of the agent inside the episode that asks; '' is the main agent."""
    retry_key: str | None = None
    """Two requests with one key are one request sent twice. None: never a retry."""


@dataclass(frozen=True, slots=True)
class Call:
    """What an engine is asked: token ids in, a policy for sampling, nothing about chat."""

    id: str
    session_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    group_id: str | None = None
    """None: the call belongs to no group, and its prompt is shared with nobody on purpose."""
    adapter: str | None = None
    """None: the base weights (or the one adapter that is being trained)."""
    deadline_at: float | None = None
    """time.monotonic() after which the engine aborts the call. None: no deadline."""
    num_answered: int = 0
    """So many tokens at the end of the prompt are of this answer already: another engine had begun it."""

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
    """Per token the likeliest (id, logprob); empty when not asked for."""
    num_cached_tokens: int = 0
    """Prompt tokens whose keys and values were already there."""
    kept_ids: tuple[tuple[int, ...] | None, ...] = ()
    """Per token the ids it was drawn among, rising; empty when the sampling cuts nothing. An entry is None where more
    than MAX_KEPT_IDS were kept, or where the engine cannot say."""
    prefill_s: float | None = field(default=None, compare=False)
    """From when the engine began with the prompt to the first token; before that the call waited. None: the engine
    cannot say."""

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
    """Prompt tokens whose keys and values were found and reused."""
    num_preemptions: int = 0
    num_stale_kv_tokens: int = 0
    """Cached tokens of sequences in flight whose keys and values are older than the weights."""
    num_pages: int = 0
    num_free_pages: int = 0
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Node:
    """A run of tokens in a session's graph: only the tokens it adds to its parent's path."""

    parent: int | None
    """Index of the parent node. None: the node starts at the first token of a prompt."""
    token_ids: tuple[int, ...]
    turn_id: str | None = None
    """The turn that sampled these tokens. None: context, sampled by nobody."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call of a session. Its id is the completion id that the agent sees."""

    id: str
    node: int
    """Index of the sampled node; the path from the root to it is what the engine saw and sampled."""
    prefix: str | None
    """Turn whose tokens this one extends; token sharing uses this edge. None: starts a path of its own."""
    follows: str | None
    """Turn whose consequence this one is; credit uses this edge. None: a root of credit."""
    fork: ForkReason | None
    """Why the tokens do not extend those of `follows`. None: they do, or there is no such turn."""
    messages: tuple[Message, ...]
    reply: Message
    sampled: Sampled
    sampling: Sampling
    agent: str = ""
    started_at: float = 0.0
    """Unix time in seconds, as is `finished_at`."""
    finished_at: float = 0.0
    tools: tuple[ToolSpec, ...] = ()
    undecoded: tuple[str, ...] = ()
    """Raw text of what began as a tool call and was none; it also stands in the reply's content."""
    abort_cause: AbortCause | None = None
    """Why the answer was broken off: its client left, its session ended, its time was up, or another answer of the
    same request failed. None: it was not, or the engine did so by itself."""
    first_token_at: float = 0.0
    """Unix time in seconds. 0: not known."""

    @property
    def finish_reason(self) -> FinishReason:
        """Why the answer ended, as an agent is told: calls are only announced when the model finished them itself."""
        if self.sampled.stop_reason == "stop" and self.reply.tool_calls:
            return "tool_calls"
        return self.sampled.stop_reason


UNKNOWN_PROMPT = (0,)
"""Stands in a graph for the prompt of a model whose tokens nobody here knows: a turn needs something to stand on."""


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
        """Per node the number of tokens from the root to its end; a parent always precedes its children."""
        ends: list[int] = []
        for node in self.nodes:
            ends.append((0 if node.parent is None else ends[node.parent]) + len(node.token_ids))
        return ends

    def chains(self, turns: Sequence[Turn]) -> Iterator[tuple[Turn, ...]]:
        """Those of `turns` that lie on each path from the root to a leaf, in its order; a turn on several is in the
        first alone."""
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
        """Rewards of such an episode may be trained on: it ended by itself, or by one of its limits."""
        return self.kind in ("ok", "truncated")


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took time in an episode and was no answer of the model: a tool, a reward."""

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
    """The turn that asked for it. None: none did."""
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished session with its rewards."""

    id: str
    task_id: str
    group_id: str
    session: SessionRecord
    rewards: Mapping[str, float]
    """By turn id; only turns that were given one."""
    outcome: Outcome
    reward: float | None = None
    """The number the agent returned, or the sum of the mapping it returned. None: it returned neither."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    started_at: float = 0.0
    finished_at: float = 0.0
    is_eval: bool = False
    left_out: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By turn id the places of sampled tokens that its agent does not want trained."""
    spans: tuple[Span, ...] = ()
    has_returns: bool = False
    """`rewards` are returns that its agent computed: nothing is passed back from later turns."""

    @property
    def is_greedy(self) -> bool:
        """Every answer is the likeliest: others may be compared with it, and it cannot be trained."""
        return bool(self.session.turns) and all(turn.sampling.is_greedy for turn in self.session.turns)


@dataclass(frozen=True, slots=True)
class Group:
    """The episodes of one task instance. Statistics are over members by id, never by position."""

    id: str
    task_id: str
    episodes: tuple[Episode, ...]
    source: str = ""
    """Name of the dataset that its row is of. '': there is only one, or none."""
    demonstrations: tuple[Episode, ...] = ()
    """Members that experts gave: nobody sampled their tokens, and they are compared with the others."""


def _unequal_length(record: object, *names: str) -> ValueError:
    lengths = {name: len(getattr(record, name)) for name in names}
    return ValueError(f"{type(record).__name__} holds sequences of unequal length: {lengths}")
