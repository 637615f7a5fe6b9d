"""Routing, simulated: loads of many sessions over replicas that exist on paper alone, under one policy or another."""
