"""Parameter servers and their workers: who they are, what they tell each other."""
