"""The doors: how a user's agent is found, called, and how what it returns becomes rewards."""
