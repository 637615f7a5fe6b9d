"""Plans how a run uses the memory of its GPUs ("cards") before it starts: cache pages, row sizes, optimizer state, and
which process goes on which GPU."""
