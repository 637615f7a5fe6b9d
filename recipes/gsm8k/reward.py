"""The reward of a trajectory: the right number, or at least the form that a right one would have."""

import re
from fractions import Fraction

# Beside the reward for the right answer, which so small a model hardly ever finds.
FORM = 0.1
TOOL = "calc_gsm8k_reward"


def compute_score(data_source, solution_str, ground_truth, extra_info):
    """1 for the right number after '####'; else a little for asking the tool about a number, and for such an end."""
    messages = extra_info["messages"]
    told = [message["content"] for message in messages if message["role"] == "tool" and message.get("name") == TOOL]
    asked = any(number(text) is not None for said in told for text in re.findall(r"answer='([^']*)'", said))
    end = re.search(r"####\s*(\S+)\s*$", messages[-1].get("content") or "") if messages[-1]["role"] != "tool" else None
    found = number(end.group(1)) if end else None
    right = float(found is not None and found == number(ground_truth))
    score = max(right, FORM * asked + FORM * (found is not None))
    return {"score": score, "acc": right, "asked": float(asked), "answered": float(found is not None)}


def number(text):
    """The number that the text is; None if it is none."""
    try:
        return Fraction(text.replace(",", "").replace("$", "").rstrip("."))
    except (ValueError, ZeroDivisionError):
        return None
