"""The life of an episode: a session is opened, recorded exactly, rewarded, ended, and exported for training."""
