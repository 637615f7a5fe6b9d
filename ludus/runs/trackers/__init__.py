"""Sends runs to external trackers: metrics, episodes as traces, the summary and the report."""
