"""Several engines that serve one model, as one engine: replicas, their weights and health, and who gets a call."""
