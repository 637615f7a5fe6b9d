"""The names of `art.local`."""

from ludus.api.backends import LocalBackend

__all__ = ["LocalBackend"]
