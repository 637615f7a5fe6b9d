"""Faults that a gateway can have, a file for each part of the server that they are put in."""
