"""Frozen chat models that are asked and never trained: judges, writers of scenarios."""
