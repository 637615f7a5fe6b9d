"""Plays episodes: one, many in groups, and how far ahead of training they may run."""
