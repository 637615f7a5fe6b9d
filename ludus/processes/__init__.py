"""Processes that can be killed: calls of Python functions with a deadline, an environment and captured output."""
