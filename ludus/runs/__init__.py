"""The record of a run: its folder, report, curves and live page; spans, and trackers."""
