"""Environments, where `realhf.api.core.env_api` has them."""

from ludus.agents.environments.base import EnvironmentService
from ludus.compat.realhf.environments import ALL_ENV_CLASSES, make_env, register_environment

__all__ = ["ALL_ENV_CLASSES", "EnvironmentService", "make_env", "register_environment"]
