"""Engines behind a URL: one client of them all. The words of each kind of server stand in a folder of its own."""
