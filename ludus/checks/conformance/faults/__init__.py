"""Faults that a gateway can have, a file for each place that they are put in."""
