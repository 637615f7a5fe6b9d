"""Environments that come with Ludus."""
