"""What decides a run's numbers: options, their checks, and what is built from them."""
