"""Load a model into transformers' own modules, and save it so that plain transformers and peft load it.

Knows: transformers, peft, the files of a model folder.  Knows not: optimizers, pages, chat.
Invariant: the parameter tensors of a LoadedModel are the ones that sample and the ones that are trained.
"""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import Parameter
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging as hf_logging

from ludus.algorithms.share import WHOLE_ROW, RowPart
from ludus.errors import LudusError, UserError
from ludus.models.attention import ATTENTION_NAME, AttentionPlan, register_attention
from ludus.models.config import ModelConfig, text_config
from ludus.models.context import ContextPlan
from ludus.models.device import choose_device, use_device
from ludus.models.dtype import with_dtype
from ludus.models.four_bit import load_library, quantize_layers
from ludus.models.fused_layers import fuse_layers
from ludus.models.outline import check_headers, check_outline, read_config
from ludus.models.pieces import Piece, whole_of
from ludus.models.probe import check_module
from ludus.models.resolve import adapter_base, base_reference, resolve_model
from ludus.models.saved_form import SavedForm, without_values
from ludus.models.settings import LoraSettings, ModelSettings
from ludus.models.targets import choose_targets
from ludus.models.threads import choose_threads
from ludus.processes.allocator import share_one_arena

if TYPE_CHECKING:
    import peft

# What belongs to a model folder beside configuration and weights; copied as it is.
_COMPANION_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)
WHOLE_FILE = "model.safetensors"
ADAPTER_FILE = "adapter_model.safetensors"
# Weights of a model and of an adapter, in one file or in several with an index.
_WHOLE_FILES = (WHOLE_FILE, "model-*-of-*.safetensors", "model.safetensors.index.json")
_ADAPTER_FILES = (ADAPTER_FILE, "adapter_model-*-of-*.safetensors", "adapter_model.safetensors.index.json")
# How weights of a text decoder are called inside a model of several modalities, and by itself.
_NAMES_IN_TOWERS = {
    r"^(?:model\.)?language_model\.(?:model\.)?(?!lm_head)": "model.",
    r"^language_model\.lm_head": "lm_head",
}
# As transformers' classes for sequences and tokens name their head, which takes the place of the vocabulary's.
HEAD_NAME = "score.weight"
# The one adapter under training; peft's own default name, so that its files carry no name of ours.
_ADAPTER = "default"


class ReshardableModule(Protocol):
    """A decoder whose weights are not whole while it rests."""

    def __call__(self, **inputs: Any) -> Any: ...

    def reshard(self) -> None: ...


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A decoder ready to sample and to be trained; both through `backbone`."""

    folder: Path
    """Where the weights and the tokenizer came from."""
    module: PreTrainedModel
    config: ModelConfig
    trainable: dict[str, Parameter]
    """By the parameter's name in `module`; shared tensors once."""
    adapter: peft.PeftModel | None = None
    """None: every weight is trained."""
    gathering: ReshardableModule | None = None
    """Runs the decoder in the place of `module` and brings its weights together for that. None: they are whole."""
    part: RowPart = WHOLE_ROW
    """Of every row, what this process computes."""
    context: dist.ProcessGroup | None = None
    """The processes over whose tokens of a row each head attends. None: this one computes all of them."""

    def __repr__(self) -> str:
        num_trained = sum(parameter.numel() for parameter in self.trainable.values())
        kind = "all weights" if self.adapter is None else "LoRA"
        return f"<LoadedModel {self.config.architecture} from {self.folder}: {num_trained:,} trained ({kind})>"

    def backbone(self, input_ids: Tensor, position_ids: Tensor, plan: AttentionPlan) -> Tensor:
        """Last hidden states, shape (B, S, D), normed, and scaled as logits are: what the head multiplies.

        input_ids: (B, S).  position_ids: (B, P), of the tokens of all parts that are computed together; else P is S.
        `plan` decides who attends to whom; where rows are cut it is that of a whole row.
        """
        if self.context is not None:
            plan = ContextPlan(plan, self.context)
        run = self.module.base_model if self.gathering is None else self.gathering
        output = run(input_ids=input_ids, position_ids=position_ids, use_cache=False, plan=plan)
        hidden = cast(Tensor, output.last_hidden_state)
        return hidden if self.config.logit_scale == 1.0 else hidden * self.config.logit_scale

    def release(self) -> None:
        """After a forward pass that no backward pass follows: what it brought together is given up again."""
        if self.gathering is not None:
            self.gathering.reshard()

    @property
    def head_weight(self) -> Tensor:
        """Weight of the vocabulary head, shape (V, D)."""
        return cast(Tensor, self.module.get_output_embeddings().weight)

    @property
    def embedding(self) -> torch.nn.Embedding:
        """The table of input embeddings; may share its weight with the head."""
        return cast(torch.nn.Embedding, self.module.get_input_embeddings())

    @property
    def layers(self) -> list[torch.nn.Module]:
        """The decoder's layers, first to last."""
        return decoder_layers(self.module, self.config)

    @property
    def adapter_config(self) -> dict[str, Any] | None:
        """What peft writes beside the adapter's weights. None: every weight is trained."""
        if self.adapter is None:
            return None
        config: dict[str, Any] = json.loads(json.dumps(self.adapter.peft_config[_ADAPTER].to_dict(), default=sorted))
        return config

    def saved(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Values of trained weights, given by their names in `module`, as saved files name and cut them."""
        return self.form.saved((self._saved_name(name), tensor) for name, tensor in tensors)

    @cached_property
    def saved_shapes(self) -> Mapping[str, Tensor]:
        """The tensors of saved files that hold trained weights, in the order of `saved`, without values."""
        return dict(self.saved((name, without_values(each)) for name, each in self.trainable.items()))

    @cached_property
    def form(self) -> SavedForm:
        """How files hold the model's tensors; those of an adapter are called there as peft does."""
        return SavedForm(self.module, {**self.trainable, **self.untrained} if self.adapter is None else {})

    @property
    def untrained(self) -> Mapping[str, Tensor]:
        """What files of the whole model hold beside trained weights, such as the biases of routers."""
        if self.adapter is not None:
            return {}
        saved = self.module.state_dict().keys()
        frozen = {name: each for name, each in self.module.named_parameters() if not each.requires_grad}
        return frozen | {name: each for name, each in self.module.named_buffers() if name in saved}

    def saved_parts(self, name: str) -> tuple[str, ...]:
        """The tensors of saved files that hold the parameter called `name` in `module`; most are in one."""
        return self.form.parts(self._saved_name(name))

    def joined(self, name: str, parts: Mapping[str, Tensor]) -> Tensor:
        """What `saved_parts` hold, as the parameter called `name` in `module`."""
        return self.form.own(self._saved_name(name), parts)

    def _saved_name(self, name: str) -> str:
        return name if self.adapter is None else "base_model.model." + name.replace(f".{_ADAPTER}.", ".")


def decoder_layers(module: PreTrainedModel, config: ModelConfig) -> list[torch.nn.Module]:
    """As `LoadedModel.layers`."""
    lists = (each for each in module.base_model.modules() if isinstance(each, torch.nn.ModuleList))
    return list(next(each for each in lists if len(each) == config.num_layers))


def load_model(settings: ModelSettings, *, seed: int = 0, is_mapped: bool = False) -> LoadedModel:
    """The model that `settings` names, its layers checked to be ones that Ludus samples and trains exactly.

    seed: of the first values of fresh adapters.
    is_mapped: the weights stay in their file, on the CPU, until somebody takes what is needed of them (`shards.py`).
    Raises UserError if there is no such model or device, if a layer keeps another state than keys and values, or if
    weights are to be kept in 4 bits and cannot be.
    """
    device = choose_device(settings.device)
    use_device(device)
    choose_threads()
    share_one_arena()
    settings = with_dtype(settings)
    folder = resolve_model(settings.path)
    base = adapter_base(folder)
    if base is not None and settings.lora is not None:
        raise UserError(f"{folder} is a LoRA adapter already; leave model.lora unset to go on training it")
    base_folder = folder if base is None else resolve_model(base)
    described = read_config(base_folder)
    config = ModelConfig.from_hf(described, context_length=settings.context_length)
    check_outline(base_folder, described, config)
    check_headers(base_folder, config)
    if text_config(described) is not described and (base is not None or settings.lora is not None):
        raise UserError(
            f"{config.architecture} is loaded as its text decoder alone, whose layers have other names than in the "
            "whole model, so that nothing else would load an adapter of it; leave model.lora unset, or save the text "
            "decoder by itself first"
        )
    is_quantized = settings.quantization != "none"
    if is_quantized:
        if base is None and settings.lora is None:
            raise UserError(
                "model.quantization=nf4 keeps weights in 4 bits, which cannot be trained: set model.lora, or leave "
                "model.quantization unset"
            )
        load_library()
    module = _load_module(base_folder, described, getattr(torch, settings.dtype))
    if not (is_mapped or is_quantized):
        module = module.to(device)
    adapter = _adapter_of(module, settings, folder, seed)
    if is_quantized:  # weight by weight: in 16 bits all of them might have no room on the device
        quantize_layers(decoder_layers(module, config), device)
        module.to(device)
    fuse_layers(module, device=device, stacks=not is_mapped)
    if not is_mapped:
        _leave_file(module)
    trainable = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    model = LoadedModel(folder, module, config, trainable, adapter)
    return replace(model, config=_proven(model))


def _adapter_of(module: PreTrainedModel, settings: ModelSettings, folder: Path, seed: int) -> peft.PeftModel | None:
    """The adapter that is saved in `folder`, or a fresh one if the settings ask for that."""
    if adapter_base(folder) is not None:
        if not any(any(folder.glob(pattern)) for pattern in _ADAPTER_FILES):
            raise UserError(f"{folder} holds no {ADAPTER_FILE}; other files of weights are pickles, and are not read")
        import peft  # not above: it takes a quarter of a second to load, and few models have an adapter

        with quiet():
            saved = peft.PeftModel.from_pretrained(module, folder, is_trainable=True, autocast_adapter_dtype=False)
        return cast("peft.PeftModel", saved)
    if settings.lora is None:
        return None
    adapter = _add_lora(module, settings.lora, seed)
    # peft itself would name the folder that the weights lie in, which for a hub id is one of this machine's cache
    adapter.peft_config[_ADAPTER].base_model_name_or_path = base_reference(settings.path, folder)
    return adapter


def _proven(model: LoadedModel) -> ModelConfig:
    """What the layers are, run once. What runs there is others' code, and may fail in any way."""
    try:
        return check_module(model.module, model.config, model.backbone)
    except (LudusError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"{model.config.architecture} cannot be run as Ludus runs decoders: {type(error).__name__}: {error}"
        ) from error


def save_model(model: LoadedModel, folder: Path, *, chat_template: str | None = None) -> None:
    """Write weights, tokenizer and generation settings so that plain transformers or peft load them.

    chat_template: text of the template that the model was trained with, if not its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with quiet():
        if model.adapter is None:
            model.module.save_pretrained(folder, max_shard_size=sys.maxsize)  # one file, whose name is known
        else:
            # "auto" asks the hub whether the vocabulary has grown; it never does here
            model.adapter.save_pretrained(str(folder), save_embedding_layers=False)
    remove_other_weights(model, folder, {WHOLE_FILE if model.adapter is None else ADAPTER_FILE})
    copy_companions(model.folder, folder, chat_template=chat_template)


def remove_other_weights(model: LoadedModel, folder: Path, written: Collection[str]) -> None:
    """Remove the files of weights that an earlier save of such a model left and this one did not write.

    Who loads the folder would prefer one file to several, whichever is newer. A base beside an adapter stays.
    """
    for pattern in _WHOLE_FILES if model.adapter is None else _ADAPTER_FILES:
        for path in folder.glob(pattern):
            if path.name not in written:
                path.unlink()


def copy_companions(source: Path, folder: Path, *, chat_template: str | None = None) -> None:
    """Write what belongs to a model's folder beside configuration and weights, as it is in `source`.

    chat_template: as of `save_model`.
    """
    for name in _COMPANION_FILES:
        own, copied = source / name, folder / name
        # a model may be saved where it came from; what is there is then its own
        if own.is_file() and not (copied.exists() and own.samefile(copied)):
            shutil.copyfile(own, copied)
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")


def read_trainable(model: LoadedModel, folder: Path, piece: Callable[[Tensor], Piece] = whole_of) -> dict[str, Tensor]:
    """The weights that `save_model` wrote into `folder`, by the names of the model's trainable parameters.

    piece: which piece of a parameter is wanted; all of it by default.
    Raises UserError if it holds none of some parameter.
    """
    with ExitStack() as stack:
        opened = [stack.enter_context(safe_open(path, framework="pt")) for path in sorted(folder.glob("*.safetensors"))]
        places = {name: file for file in opened for name in file.keys()}  # noqa: SIM118
        return {name: _read(model, name, places, folder, piece(each)) for name, each in model.trainable.items()}


def _read(model: LoadedModel, name: str, places: Mapping[str, Any], folder: Path, piece: Piece) -> Tensor:
    parts = model.saved_parts(name)
    if missing := [part for part in parts if part not in places]:
        raise UserError(f"{str(folder)!r} holds no weights of {missing[0]}; it is of another model, or not whole")
    if len(parts) == 1:
        found: Tensor = places[parts[0]].get_slice(parts[0])[piece]
        return found
    whole = model.joined(name, {part: places[part].get_tensor(part) for part in parts})
    return whole[piece].clone()


def _load_module(folder: Path, described: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    register_attention()
    text, kind, options = text_config(described), AutoModelForCausalLM, {}
    if text is not described:
        text.tie_word_embeddings = described.tie_word_embeddings
        kind, options = MODEL_FOR_CAUSAL_LM_MAPPING[type(text)], {"config": text, "key_mapping": dict(_NAMES_IN_TOWERS)}
    try:
        with quiet():
            module, found = kind.from_pretrained(
                folder,
                dtype=dtype,
                attn_implementation=ATTENTION_NAME,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,  # other files are pickles
                output_loading_info=True,
                **options,
            )
    except (OSError, ValueError, KeyError, ImportError, SafetensorError) as error:
        raise UserError(f"could not load the model in {folder}: {error}") from error
    if text is not described or not getattr(module, "_weight_conversions", None):
        # saved under the names of its family: a text decoder was loaded from other ones, and experts that were fused
        # in their files already are separate ones in those that others load
        vars(module).pop("_weight_conversions", None)
    missing = sorted(name for name in found["missing_keys"] if HEAD_NAME not in found["unexpected_keys"])
    if missing:
        raise UserError(
            f"the model in {folder} is not whole: its files hold no {missing[0]}"
            + (f" and {len(missing) - 1} more weights" if len(missing) > 1 else "")
        )
    module.eval()  # sampling and training run the same forward pass: no dropout
    # No row is ever padded, so the padding token (often the end of a turn) is a token like any other and learns.
    module.get_input_embeddings().padding_idx = None
    return cast(PreTrainedModel, module)


def _leave_file(module: PreTrainedModel) -> None:
    """Give every parameter memory of its own, aligned, that is not yet part of a fused one.

    transformers maps the weights' file into memory, and as long as one parameter lies there, all of it stays.
    """
    for parameter in module.parameters():
        if parameter.is_cpu and parameter.untyped_storage().nbytes() == parameter.nbytes:
            parameter.data = parameter.data.clone()


def _add_lora(module: PreTrainedModel, lora: LoraSettings, seed: int) -> peft.PeftModel:
    import peft  # as above

    targets = choose_targets(module, lora)
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=cast(int, lora.alpha),
        target_modules=list(targets.modules),
        target_parameters=list(targets.parameters) or None,
        fan_in_fan_out=targets.are_transposed,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    with quiet(), torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            adapter = peft.get_peft_model(module, config, adapter_name=_ADAPTER, autocast_adapter_dtype=False)
        except ValueError as error:
            raise UserError(f"model.lora with {', '.join(targets.modules)} does not fit: {error}") from error
    adapter.eval()
    return cast(peft.PeftModel, adapter)


@contextmanager
def quiet() -> Iterator[None]:
    """Without progress bars, which would tear a live view apart, and without warnings of a later transformers."""
    was_enabled = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        if was_enabled:
            hf_logging.enable_progress_bar()
