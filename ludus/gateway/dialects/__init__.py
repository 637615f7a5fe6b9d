"""The wire protocols that the gateway speaks, each one folder and one line of a table."""
