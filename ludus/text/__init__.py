"""Text and tokens: the tokenizer, chat templates, incremental prompts, and parsers of replies. No torch."""
