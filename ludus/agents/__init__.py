"""Agents: how a user's agent is found and called, what it is given, and the tools and environments it may use."""
