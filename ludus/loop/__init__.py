"""The training loop: groups of episodes become steps of training, and what is seen on the way."""
