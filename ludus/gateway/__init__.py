"""The HTTP server through which agents reach the model, in the wire protocol that their SDK speaks.

Knows: wire protocols, keys, sockets, clients.  Knows not: tokens, templates, engines, rewards.
"""
