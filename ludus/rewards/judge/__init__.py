"""Judges: a chat model compares what several agents did, and its opinion is the reward."""
