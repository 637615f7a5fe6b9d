"""Episodes made by hand, as the tests of the loop make them."""

from tests.loop.conftest import make_episode

__all__ = ["make_episode"]
