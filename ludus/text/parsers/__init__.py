"""Parsers of replies: one file per way of writing tool calls, the core they share, and their protocol."""
