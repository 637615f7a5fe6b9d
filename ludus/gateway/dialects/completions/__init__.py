"""OpenAI Completions: plain text goes on."""
