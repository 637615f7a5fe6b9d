"""Teachers: log-probabilities of sampled tokens under another model, or under the same model with more context."""
