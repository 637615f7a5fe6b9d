"""Rows of mathematics and programs, where `realhf.impl.dataset` has them."""

from ludus.agents.environments.math_code import load_metadata

__all__ = ["load_metadata"]
