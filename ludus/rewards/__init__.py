"""Rewards for episodes: verifiers, judges, and a wrapper that runs reward functions in separate processes."""
