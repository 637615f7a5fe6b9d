"""Answers of the model, where `realhf.api.core.model_api` has them."""

from ludus.compat.realhf.generation import APIGenerateOutput, BundledGenerationOutputs, GenerationHyperparameters

__all__ = ["APIGenerateOutput", "BundledGenerationOutputs", "GenerationHyperparameters"]
