"""Where the processes of a run are placed: on this machine, by Ray, or in a Slurm job."""
