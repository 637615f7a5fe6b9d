"""The training loop: turns groups of episodes into training steps, and reports on the way."""
