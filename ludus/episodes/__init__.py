"""One life of an episode: sessions opened, recorded exactly, rewarded and ended, and what they become in training."""
