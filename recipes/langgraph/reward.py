"""The reward of a trajectory, as verl's users write one: the right number, or a part of the way to it."""

import re

# Beside the reward for the right answer: a share of the steps that were taken, which a longer term needs to be found.
ON_THE_WAY = 0.3


def compute_score(data_source, solution_str, ground_truth, extra_info):
    """1 for the right number in the last message, else a part of ON_THE_WAY for each step with the right value."""
    messages = extra_info["messages"]
    found = {message["content"] for message in messages if message["role"] == "tool"}
    wanted = [str(3 * a - 2 * b) for a, b in extra_info["steps"]]
    last = messages[-1]
    numbers = re.findall(r"-?\d+", last.get("content") or "") if last["role"] == "assistant" else []
    right = float(numbers[-1:] == [ground_truth])
    way = sum(value in found for value in wanted) / len(wanted)
    return {"score": max(right, ON_THE_WAY * way), "acc": right, "steps_found": way}
