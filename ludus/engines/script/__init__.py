"""Written answers in the place of a model's, from a file."""
