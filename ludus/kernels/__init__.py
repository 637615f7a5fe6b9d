"""Our C++: each source is compiled on the user's machine, for its processor, on first use.

Nothing is imported here: `build` must run without torch.
"""
