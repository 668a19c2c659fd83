"""`mpisgd bench`: measurements of all-reduces, alone and beside work."""
