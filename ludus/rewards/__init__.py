"""What an episode is worth: verifiers, judges, and the wrapper that runs them beside the agents."""
