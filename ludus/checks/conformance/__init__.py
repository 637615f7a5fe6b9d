"""A conformance suite for servers of the public protocols, run through the official SDKs.

Knows: the published protocols, one server under test.  Knows not: how that server is built; only the cases marked as
ours inspect Ludus's internals.
"""
