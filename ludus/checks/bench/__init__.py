"""Benchmarks: how fast this machine samples, trains and steps, beside what a user would pick instead.

The command line starts every measurement in a process of its own (`pairs`), with its work in a file (`work`).
"""
