"""vLLM servers as engines: its words, its command, the ways of weights to it."""
