"""Measurements of all-reduces, alone and beside work."""
