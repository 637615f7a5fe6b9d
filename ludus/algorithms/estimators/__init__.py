"""Advantage estimators, one file each: functions of the returns of all groups of a batch."""
