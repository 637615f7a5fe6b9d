"""The cases, a file for each protocol and group of topics; `suite` puts them in order."""
