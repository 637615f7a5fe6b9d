"""Ludus's own engine: pages, scheduler, runner, sampler, kernels. Its settings need no torch."""
