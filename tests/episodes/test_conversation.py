"""A request finds the turn it follows, on messages alone."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.episodes.conversation import Conversations
from ludus.episodes.graph import SessionGraph
from ludus.text.prefix_memo import NUM_KEPT
from ludus.types import Message, Sampled, Sampling, ToolCall, Turn

SYSTEM = Message("system", "You play.")


def user(text):
    return Message("user", text)


def assistant(text, reasoning=None):
    return Message("assistant", text, reasoning)


def calls(*tasks, call_id="call"):
    return Message(
        "assistant",
        None,
        tool_calls=tuple(
            ToolCall(f"{call_id}-{i}", "ask", json.dumps({"task": task, "n": i})) for i, task in enumerate(tasks)
        ),
    )


def answer(call, text="done"):
    return Message("tool", text, tool_call_id=call.id)


class Play:
    """A session in which every request follows what the graph says."""

    def __init__(self):
        self.graph = SessionGraph("s")

    def ask(self, turn_id, messages, reply, agent="", follows="matched"):
        if follows == "matched":
            follows = self.follows(messages, agent)
        number = self.graph.stats().num_turns
        return self.graph.add_turn(
            turn_id=turn_id,
            prompt_ids=(number,),
            prefix=None,
            follows=follows,
            fork=None,
            messages=messages,
            reply=reply,
            sampled=Sampled((100 + number,), (-1.0,), (0,), "stop"),
            sampling=Sampling(),
            agent=agent,
        )

    def follows(self, messages, agent=""):
        follows = self.graph.match(messages, agent).follows
        return follows and follows.id

    def exact(self, messages, agent=""):
        return self.graph.match(messages, agent).exact


@pytest.fixture
def play():
    return Play()


def test_first_request(play):
    """The first request follows nobody."""
    assert play.follows([SYSTEM, user("go")]) is None
    assert not play.exact([SYSTEM, user("go")])


def test_conversation_goes_on(play):
    """A request that begins with a turn's messages and reply follows it exactly."""
    first = [SYSTEM, user("go")]
    play.ask("a", first, assistant("5"))
    second = [*first, assistant("5"), user("higher")]
    assert play.follows(second) == "a"
    assert play.exact(second)


def test_longest_conversation(play):
    """Of several turns on the way the one furthest down is followed."""
    first = [SYSTEM, user("go")]
    second = [*first, assistant("5"), user("higher")]
    play.ask("a", first, assistant("5"))
    play.ask("b", second, assistant("7"))
    assert play.follows([*second, assistant("7"), user("lower")]) == "b"
    assert play.follows([*first, assistant("5"), user("lower")]) == "a"


@pytest.mark.parametrize(
    ("reply", "echoed"),
    [
        (assistant("5", "Half of ten."), assistant("5")),
        (assistant("5"), assistant("5", "Half of ten.")),
        (assistant(" 5\n"), assistant("5")),
        (Message("assistant", None), assistant("")),
    ],
)
def test_reasoning_and_space(play, reply, echoed):
    """Reasoning that comes back or does not, space that was stripped, and None for '' change no match."""
    play.ask("a", [user("go")], reply)
    assert play.exact([user("go"), echoed, user("higher")])


def test_calls_by_value(play):
    """Calls match by name and by the value of their arguments, whatever their ids and spelling."""
    play.ask("a", [user("go")], Message("assistant", None, tool_calls=(ToolCall("x", "ask", '{"b": 1, "a": 2}'),)))

    def follows(name, arguments):
        called = Message("assistant", "", tool_calls=(ToolCall("y", name, arguments),))
        return play.exact([user("go"), called, Message("tool", "ok", tool_call_id="y")])

    assert follows("ask", '{"a":2,"b":1}')
    assert follows("ask", '{"a":2.0,"b":1e0}')
    assert not follows("ask", '{"a":2,"b":3}')
    assert not follows("tell", '{"a":2,"b":1}')


def test_arguments_that_are_no_json(play):
    """Arguments that cannot be decoded match by their text, however deeply they nest."""
    broken = Message("assistant", None, tool_calls=(ToolCall("x", "ask", "[" * 100_000),))
    play.ask("a", [user("go")], broken)
    assert play.exact([user("go"), broken, Message("tool", "what?", tool_call_id="x")])


def test_same_request_twice(play):
    """A request sent again is a second sample: it follows what the first one followed."""
    first = [SYSTEM, user("go")]
    second = [*first, assistant("5"), user("higher")]
    play.ask("a", first, assistant("5"))
    assert play.follows(first) is None
    play.ask("b", second, assistant("7"))
    assert play.follows(second) == "a"


def test_equal_samples_share_the_followers(play):
    """Of turns with equal replies, each is followed in its turn; one with equal reasoning is followed first."""
    first = [user("go")]
    play.ask("a", first, assistant("5", "Half."), follows=None)
    play.ask("b", first, assistant("5"), follows=None)
    assert play.follows([*first, assistant("5", "Half."), user("x")]) == "a"
    play.ask("c", [*first, assistant("5"), user("x")], assistant("6"))
    assert play.follows([*first, assistant("5"), user("x")]) == "b"
    play.ask("d", first, assistant("5"), follows=None)
    assert play.follows([*first, assistant("5"), user("y")]) == "d"


def test_same_agent_first(play):
    """Of turns with equal replies, that of the agent which asks is followed."""
    play.ask("a", [user("go")], assistant("5"), agent="solver", follows=None)
    play.ask("b", [user("go")], assistant("5"), agent="critic", follows=None)
    assert play.follows([user("go"), assistant("5"), user("x")], agent="solver") == "a"


def test_edited_reply(play):
    """A reply put into other words stands where the turn's own would: the turn is followed, not exactly."""
    first = [SYSTEM, user("go")]
    second = [*first, assistant("5"), user("higher")]
    play.ask("a", first, assistant("5"))
    play.ask("b", second, assistant("I say 7!"))
    edited = [*second, assistant("7"), user("lower")]
    assert play.follows(edited) == "b"
    assert not play.exact(edited)


def test_edited_history(play):
    """When something before it changed, the latest reply that still stands is followed, not exactly."""
    first = [SYSTEM, user("go")]
    second = [*first, assistant("5"), user("higher")]
    play.ask("a", first, assistant("5"))
    play.ask("b", second, assistant("7"))
    play.ask("other", [user("unrelated")], assistant("yes"), agent="critic", follows=None)
    for history in ([Message("system", "It is noon."), *second[1:]], [*first, assistant("5"), user("hot")]):
        edited = [*history, assistant("7"), user("lower")]
        assert play.follows(edited) == "b"
        assert not play.exact(edited)


def test_dropped_history(play):
    """When the middle was dropped, the latest reply that still stands is followed."""
    first = [SYSTEM, user("go")]
    second = [*first, assistant("5"), user("higher")]
    third = [*second, assistant("7"), user("lower")]
    play.ask("a", first, assistant("5"))
    play.ask("b", second, assistant("7"))
    play.ask("c", third, assistant("6"))
    assert play.follows([SYSTEM, assistant("6"), user("yes")]) == "c"
    assert play.follows([*first, assistant("5"), assistant("6"), user("yes")]) == "c"


def test_compacted_history(play):
    """When no reply is left, the last turn of the same agent is followed."""
    first = [SYSTEM, user("go")]
    play.ask("a", first, assistant("5"))
    play.ask("b", [*first, assistant("5"), user("higher")], assistant("7"))
    play.ask("other", [user("unrelated")], assistant("yes"), agent="critic", follows=None)
    assert play.follows([SYSTEM, user("So far: 5 and 7 were wrong.")]) == "b"
    assert play.follows([user("anything")], agent="judge") is None


def test_parallel_sub_agents(play):
    """Sub-agents follow the turn that called them, in parallel and however many turns they take."""
    first = [SYSTEM, user("Plan a trip.")]
    main = play.ask("main", first, calls("find a hotel", "find a train"))
    hotel, train = [user("find a hotel")], [user("find a train")]
    play.ask("hotel", hotel, assistant("which town?"), agent="search")
    assert play.follows(train, agent="search") == "main"
    play.ask("train", train, assistant("which day?"), agent="search")
    assert play.follows([*hotel, assistant("which town?"), user("Rome")], agent="search") == "hotel"
    assert play.follows([*train, assistant("which day?"), user("May 1")], agent="search") == "train"
    answered = [*first, main.reply, *(answer(call) for call in main.reply.tool_calls)]
    assert play.follows(answered) == "main"
    assert play.exact(answered)


def test_untagged_sub_agents(play):
    """Without tags, a task that shows in the messages tells sub-agents apart: as many as there were calls."""
    play.ask("main", [user("Plan a trip.")], calls("find a hotel", "find a train"))
    play.ask("hotel", [user("find a hotel")], assistant("ok"))
    assert play.follows([user("find a train")]) == "main"
    play.ask("train", [user("find a train")], assistant("ok"))
    assert play.follows([user("find a train, again")]) == "main"


def test_what_ran_at_once_comes_together(play):
    """After turns that went out from one, a request without a sign follows that one, not the last to be answered; while
    one is on its way too. What served a call that has its answer is over, and a broken-off answer was never there."""
    play.ask("plan", [user("plan")], assistant("three parts"))
    play.ask("first", [user("part 1")], assistant("1"), follows="plan")
    play.ask("second", [user("part 2")], assistant("2"), follows="plan")
    assert play.follows([user("merge")]) == "plan"
    play.graph.begin(["third"], [user("part 3")], "worker", "plan")
    assert play.follows([user("part 4")], agent="worker") == "plan"
    play.graph.drop("third")
    assert play.follows([user("part 4")], agent="worker") is None


def test_the_answer_that_arrived_is_followed_and_not_its_broken_twin(play):
    """An answer that could not be kept is sampled alike again: what is asked next follows the second."""
    asked = [user("go")]
    play.ask("broken", asked, assistant("1"))
    play.graph.break_off("broken", "failed")
    play.ask("whole", asked, assistant("1"))
    then = [*asked, assistant("1"), user("and now?")]
    play.ask("next", then, assistant("2"))
    assert play.graph.snapshot().turns[-1].follows == "whole" and play.follows(then) == "whole"


def test_sub_agents_are_over_with_the_answer_to_their_call(play):
    """An agent that begins afresh after its sub-agents, under its own tag, follows its own last turn."""
    first = [user("go")]
    main = play.ask("main", first, calls("check the sum"))
    play.ask("check", [user("check the sum")], assistant("right"))
    play.ask("main_2", [*first, main.reply, answer(main.reply.tool_calls[0])], assistant("thanks"))
    assert play.follows([user("in short: right")]) == "main_2"


def test_nested_sub_agents(play):
    """A sub-agent's own sub-agent follows the call that is open further down."""
    play.ask("main", [user("go")], calls("solve the task"))
    play.ask("solver", [user("solve the task")], calls("check the sum"), agent="solver")
    assert play.follows([user("check the sum")], agent="critic") == "solver"


def test_answered_call_is_closed(play):
    """Once its conversation has gone on, a turn calls nobody."""
    first = [user("go")]
    main = play.ask("main", first, calls("solve the task"))
    play.ask("main_2", [*first, main.reply, answer(main.reply.tool_calls[0])], assistant("thanks"))
    assert play.follows([user("solve the task")], agent="solver") is None


def test_caller_is_not_called_by_its_sub_agent(play):
    """An open call of a sub-agent does not make its caller the sub-agent of it."""
    first = [SYSTEM, user("go")]
    play.ask("main", first, calls("solve the task"))
    play.ask("solver", [user("solve the task")], calls("submit: 42"), agent="solver")
    assert play.follows([SYSTEM, user("In short: solved.")]) == "main"


def test_messages_are_held_once(play):
    """Turns of one conversation hold the same message objects, not copies of them."""
    for number in range(4):
        history = [SYSTEM]
        for i in range(number):
            history += [user(f"q{i}"), assistant(f"r{i}")]
        play.ask(f"t{number}", [*history, user(f"q{number}")], assistant(f"r{number}"))
    turns = play.graph.snapshot().turns
    held = {id(message) for turn in turns for message in (*turn.messages, turn.reply)}
    assert len(held) == 1 + 2 * len(turns)


def test_same_task_for_a_second_caller(play):
    """The same request of a sub-agent follows whoever calls now, once the conversation that called it has gone on."""
    first = [user("go")]
    task = [user("check the sum")]
    main = play.ask("main", first, calls("check the sum"))
    play.ask("check", task, assistant("right"), agent="critic")
    assert play.follows(task, agent="critic") == "main"
    second = [*first, main.reply, answer(main.reply.tool_calls[0])]
    play.ask("main_2", second, calls("check the sum", call_id="again"))
    assert play.follows(task, agent="critic") == "main_2"


messages = st.builds(Message, st.sampled_from(["user", "assistant"]), st.sampled_from(["a", "b", "a "]))


@given(st.lists(st.tuples(st.integers(0, 6), st.lists(messages, min_size=1, max_size=3), messages), max_size=8))
def test_what_was_entered_before_changes_no_match(steps):
    """Where histories go on, are cut or edited, a way that is remembered leads where a new walk does."""
    remembers, forgets = Conversations(), Conversations()
    history = []
    for number, (kept, new, reply) in enumerate(steps):
        history = [*history[:kept], *new]
        matches = []
        for conversations in (remembers, forgets):
            match = conversations.match(history, agent="")
            follows = match.follows.id if match.follows else None
            matches.append((follows, match.exact))
            asked = conversations.enter(history)
            sampled, sampling = Sampled((1,), (0.0,), (0,), "stop"), Sampling()
            own = tuple(step.message for step in asked)
            turn = Turn(str(number), 0, None, follows, None, own, reply, sampled, sampling)
            conversations.add(turn, asked)
        assert matches[0] == matches[1]
        for noise in range(NUM_KEPT):
            forgets.enter([user(f"noise {noise}")])
        history.append(reply)
