"""A whole run, from the first message to the last: one module a world."""
