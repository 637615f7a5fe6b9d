"""Losses, one file each: functions of the tokens of a row that return the loss of each, and what to show of it."""
