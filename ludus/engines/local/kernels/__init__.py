"""Attention over paged keys and values: the protocol, a native kernel in C++, an eager one in torch.

Nothing is imported here: `base` needs torch.
"""
