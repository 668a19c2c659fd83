"""What a machine gives to MPI, found by trying: each trial is a process with a deadline."""
