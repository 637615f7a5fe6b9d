"""Proofs that a user can run: each law of Ludus checked against what users run."""
