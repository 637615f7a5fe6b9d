"""The template doctor: what is appended after a reply under a chat template, what forks, and what makes it fork."""
