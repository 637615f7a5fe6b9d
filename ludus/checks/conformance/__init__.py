"""What a server of the public protocols owes its clients, as cases that the clients' own SDKs run.

Knows: the protocols as they are published, one server under test.  Knows not: how that server is built; only the cases
that are marked as ours look behind the gateway.
"""
