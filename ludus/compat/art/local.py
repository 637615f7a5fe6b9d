"""The names of `art.local`."""

from ludus.compat.art.local_backend import LocalBackend

__all__ = ["LocalBackend"]
