"""The engine of a training that is replayed: weights are published to it, and nothing is sampled."""
