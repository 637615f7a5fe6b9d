"""Teachers: how likely another model, or the same one that knows more, finds the tokens that were sampled."""
