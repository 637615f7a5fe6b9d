"""The reward of a trajectory, as verl's users write one: right, or at least calculated."""

import re

# Beside the reward for the right answer: the way to it is rare at first, and this finds it.
CALCULATED = 0.1


def compute_score(data_source, solution_str, ground_truth, extra_info):
    """1 for the right number in the last message, else a little for a call that gave a value."""
    messages = extra_info["messages"]
    values = [message["content"] for message in messages if message["role"] == "tool"]
    last = messages[-1]
    numbers = re.findall(r"-?\d+", last.get("content") or "") if last["role"] == "assistant" else []
    right = float(numbers[-1:] == [ground_truth])
    calculated = float(any(re.fullmatch(r"-?\d+", value) for value in values))
    return {"score": max(right, CALCULATED * calculated), "acc": right, "calculated": calculated}
