"""Serving over HTTP: an application on a thread of its own, the bearer keys that guard it, and TLS."""
