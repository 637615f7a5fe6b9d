"""Answers of the model, where `realhf.api.core.model_api` has them."""

from ludus.agents.queues.generation import APIGenerateOutput, BundledGenerationOutputs, GenerationHyperparameters

__all__ = ["APIGenerateOutput", "BundledGenerationOutputs", "GenerationHyperparameters"]
