"""Losses, one file each: functions of tokens that return the loss of each, and what to show of it."""
