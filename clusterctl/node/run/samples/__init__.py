"""The samples of what a node and the ranks of a run used: values, their file, what they tell."""
