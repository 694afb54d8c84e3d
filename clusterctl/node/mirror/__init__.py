"""The node's half of a sync: compare the folder, change it, prove the tree."""
