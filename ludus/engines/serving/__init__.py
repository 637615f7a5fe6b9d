"""An engine of ours behind a URL: what it is asked in, how new weights come in, and the client of it."""
