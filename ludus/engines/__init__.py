"""Engines sample tokens: the protocol they keep, one folder for each kind, a scripted one for tests and docs."""
