"""The names of `art.utils.sft`."""

from ludus.compat.art.schedule import create_lr_schedule
from ludus.compat.art.supervised import SFTDatasetChunk, create_sft_dataset_iterator, iterate_file, train_sft_from_file

__all__ = [
    "SFTDatasetChunk",
    "create_lr_schedule",
    "create_sft_dataset_iterator",
    "iterate_file",
    "train_sft_from_file",
]
