"""Playing: one episode, many episodes in groups, how far they may run ahead."""
