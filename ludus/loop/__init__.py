"""The story: groups of episodes become steps of training, and what is seen on the way."""
