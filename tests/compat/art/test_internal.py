"""ART's internal configuration: what stands for something here acts, the rest is named."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

import ludus.compat.art as art
from ludus.compat.art.configs import default_config, model_config


def test_keys_that_act_and_keys_that_do_not(caplog: pytest.LogCaptureFixture) -> None:
    """Lengths, LoRA and optimizer are ours too; the arguments of another runtime are named in a warning."""
    model: art.TrainableModel[None] = art.TrainableModel(name="m", project="p", base_model="smollm2-135m")
    model._internal_config = art.dev.InternalModelConfig(
        init_args=art.dev.InitArgs(max_seq_length=512),
        peft_args=art.dev.PeftArgs(r=4, target_modules=["q_proj"]),
        trainer_args=art.dev.TrainerArgs(max_grad_norm=0.2, adam_beta1=0.8, adam_epsilon=1e-6),
        engine_args=art.dev.EngineArgs(enforce_eager=True),
    )
    config = model_config(default_config(), base_model="b", own=model.internal_config, folder=("root", "name"))
    optimizer = config.trainer.optimizer
    assert (config.model.context_length, optimizer.max_grad_norm, optimizer.weight_decay) == (512, 0.2, 0.1)
    assert (optimizer.betas, optimizer.eps) == ((0.8, 0.99), 1e-6)
    assert config.model.lora is not None
    lora = (config.model.lora.rank, config.model.lora.alpha, config.model.lora.target_modules)
    assert lora == (4, 16.0, ("q_proj",))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "do not act here: engine_args.enforce_eager." in caplog.text


def test_arguments_of_the_template_are_of_every_request(
    make_backend: Callable[..., art.LocalBackend], make_model: Callable[..., art.TrainableModel[Any]]
) -> None:
    """`chat_template_kwargs` reach the template, given as text as ART has it; a request's own stand above them."""
    source = "{% for message in messages %}{{ message.content }}{% endfor %}{{ more }}"
    own = art.dev.InternalModelConfig(
        chat_template=source, chat_template_kwargs={"more": "and so on", "depth": {"a": 1}}
    )
    asked: Any = {"model": "agent", "messages": [{"role": "user", "content": "Guess."}]}

    async def main() -> list[int]:
        async with make_backend() as backend:
            model = make_model(_internal_config=own)
            await model.register(backend)
            chat = model.openai_client().chat.completions
            answers = [
                await chat.create(**asked),
                await chat.create(**asked, extra_body={"chat_template_kwargs": {"more": ""}}),
            ]
            return [answer.usage.prompt_tokens for answer in answers]

    assert make_model(_internal_config=own).internal_config["model"] == {
        "chat_template": source,
        "chat_template_kwargs": {"more": "and so on", "depth": {"a": 1}},
    }
    with_more, without = asyncio.run(main())
    assert with_more > without
