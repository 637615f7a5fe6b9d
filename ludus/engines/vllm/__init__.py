"""vLLM servers as engines: its requests, its command, how weights are sent to it."""
