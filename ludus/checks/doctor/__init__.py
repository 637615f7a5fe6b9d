"""The template doctor: finds which transitions of a conversation make a chat template's prompt fork, and why."""
