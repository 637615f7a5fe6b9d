"""Faults for testing the suite itself, in one file for each part of the server into which they are injected."""
