"""Starts the processes of a run: on this machine, in a Ray cluster, or in a Slurm job."""
