"""What a run's processes are: workers, forks, MPI ranks, devices, numerics, signals."""
