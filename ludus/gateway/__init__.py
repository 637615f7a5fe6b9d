"""The model's voice: agents talk to it over HTTP, in the words of the wire protocol that their SDK speaks.

Knows: wire protocols, keys, sockets, clients.  Knows not: tokens, templates, engines, rewards.
"""
