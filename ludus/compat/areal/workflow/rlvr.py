"""The names of `areal.workflow.rlvr`."""

from ludus.compat.areal.verified import RLVRWorkflow, default_data_extract_prompt_fn

__all__ = [
    "RLVRWorkflow",
    "default_data_extract_prompt_fn",
]
