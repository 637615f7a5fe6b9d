"""Training as a service: models, jobs and their events over HTTP, for clients that have neither torch nor a GPU.

Knows: HTTP, jobs, the backend that trains.  Knows not: how a step is computed.
"""
