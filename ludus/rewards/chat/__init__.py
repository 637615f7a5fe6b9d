"""Frozen chat models, which are never trained: judges, writers of scenarios."""
