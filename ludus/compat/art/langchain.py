"""Rollouts with agents of LangChain or LangGraph: provides their chat model, and captures their trajectories.

Knows: models, captured exchanges, LangChain's `ChatOpenAI`.  Knows not: tokens, backends.
Invariant: a chat model always uses the newest weights of its model, even if it was made before them.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any, ParamSpec, overload

from ludus.compat.art.capture import capturing
from ludus.compat.art.context import bound
from ludus.compat.art.trainable import Model
from ludus.compat.art.trajectory import Trajectory
from ludus.compat.members import takes
from ludus.errors import UserError
from ludus.processes.blocking import run_blocking, stream_blocking

P = ParamSpec("P")
Rollout = Callable[P, Awaitable[Trajectory]]

_model: ContextVar[Model[Any] | None] = ContextVar("ludus_langchain_model", default=None)


@overload
def wrap_rollout(model: Model[Any], fn: Rollout[P]) -> Rollout[P]: ...


@overload
def wrap_rollout(model: Model[Any]) -> Callable[[Rollout[P]], Rollout[P]]: ...


def wrap_rollout(model: Model[Any], fn: Rollout[P] | None = None) -> Any:
    """The rollout, wrapped so that `init_chat_model` returns this model and its answers are captured.

    If the returned trajectory contains no answers, the captured conversations are added to it: the first as the main
    one, others as additional histories. A trajectory with answers is not changed.
    fn: the rollout. None: return a decorator.
    """
    if fn is None:
        return functools.partial(wrap_rollout, model)
    rollout = fn

    @functools.wraps(rollout)
    async def wrapped(*args: P.args, **kwargs: P.kwargs) -> Trajectory:
        with bound(_model, model), capturing() as capture:
            trajectory = await rollout(*args, **kwargs)
        if not isinstance(trajectory, Trajectory):
            raise UserError(
                f"the rollout that is wrapped returned a {type(trajectory).__name__}; it must return a Trajectory"
            )
        said = capture.trajectory
        if said.choices() and not any(history.choices() for history in trajectory.histories()):
            trajectory.messages_and_choices = said.messages_and_choices
            trajectory.tools = said.tools
            trajectory.additional_histories = [*trajectory.additional_histories, *said.additional_histories]
        return trajectory

    return wrapped


@takes("art", "langgraph.llm_wrapper.init_chat_model")
def init_chat_model(
    model: str | None = None,
    *,
    model_provider: str | None = None,
    configurable_fields: Any = None,
    config_prefix: str | None = None,
    **kwargs: Any,
) -> Any:
    """The chat model of the current wrapped rollout; supports async and blocking calls, streaming and tools.

    model: name of the model, of one of its steps (NAME@12) or of its base. None: the newest weights.
    kwargs: arguments of LangChain's `ChatOpenAI`; the default temperature is 1.0.
    Raises UserError outside of a wrapped rollout, and for the name of another model.
    """
    del model_provider, configurable_fields, config_prefix
    found = _model.get()
    if found is None:
        raise UserError("init_chat_model was called outside of a rollout; wrap it: wrap_rollout(model, rollout)")
    own = found.get_inference_name()
    asked = own if model in (None, found.name) else model
    if asked not in (own, getattr(found, "base_model", None)) and not str(asked).startswith(f"{own}@"):
        raise UserError(
            f"init_chat_model({model!r}) is not the model of this rollout, {found.name!r}; leave the name out, or use "
            "LangChain's own init_chat_model for another one"
        )
    options = {"temperature": 1.0, "max_retries": 0, "stream_usage": False, **kwargs}
    client = found.openai_client()
    return _chat_class()(
        model=asked,
        base_url=str(client.base_url),
        api_key=client.api_key,
        http_async_client=found.http_client(),
        **options,
    )


@functools.cache
def _chat_class() -> Any:
    """A `ChatOpenAI` whose blocking calls use the same transport as async ones. Raises UserError if not installed."""
    try:
        base = importlib.import_module("langchain_openai").ChatOpenAI
    except ModuleNotFoundError as error:
        raise UserError(f"chat models of LangChain need {error.name!r}: pip install langchain-openai") from None

    class RolloutChatModel(base):  # type: ignore[misc, valid-type]  # not known before it is needed
        """The model of a rollout."""

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            return run_blocking(self._agenerate(messages, stop, None, **kwargs))

        def _stream(self, *args: Any, run_manager: Any = None, **kwargs: Any) -> Iterator[Any]:
            async def chunks() -> AsyncGenerator[Any, None]:
                async for chunk in self._astream(*args, **kwargs):
                    yield chunk

            for chunk in stream_blocking(chunks):
                if run_manager is not None and chunk.text:
                    run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

    return RolloutChatModel
