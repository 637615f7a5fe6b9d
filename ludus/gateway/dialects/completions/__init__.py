"""OpenAI Completions: plain text is continued."""
