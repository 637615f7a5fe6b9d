"""Benchmarks: how fast this machine samples, trains and steps, compared with alternatives ("peers").

The command line runs every measurement in a separate process (`pairs`), whose work is described in a file (`work`).
"""
