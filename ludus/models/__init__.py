"""Weights: find them, load them into transformers' own modules, hook our attention in, save them as transformers does.

This package itself imports no torch, so that the configuration tree can read the settings on the base install;
`load`, `attention`, `tree` and `config` are imported from their modules.
"""
