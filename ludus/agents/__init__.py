"""Finds and calls a user's agent, and provides what it may use: the model, tools, environments, other models."""
