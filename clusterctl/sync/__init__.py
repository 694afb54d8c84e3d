"""The controller's half of a sync: which files belong to the mirror, what differs, rsync."""
