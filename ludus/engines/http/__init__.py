"""Engines behind a URL: one client of them all. The protocol of each kind of server is in its own folder."""
