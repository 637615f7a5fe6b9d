"""Checks that users can run: each guarantee of Ludus is tested with the components that users run."""
