"""Judges: a chat model compares what several agents did, and its score is the reward."""
