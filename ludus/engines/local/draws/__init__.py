"""Draws from logits: the protocol, a native kernel in C++, an eager one in torch.

Nothing is imported here: `base` needs torch.
"""
