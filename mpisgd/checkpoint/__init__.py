"""Checkpoints: the state of a run at the end of a step, kept so that it can go on to the same bits.

What has state gives it as a dict of arrays, numbers and further such dicts (`state()`), and takes
it back (`restore(state)`); who writes it where, and when, is this package's affair.
"""
