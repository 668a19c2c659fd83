"""The laws of the averaging algorithms, in float64 on virtual ranks; each law's number is that of
docs/laws.md or, without it, the order of this file."""
