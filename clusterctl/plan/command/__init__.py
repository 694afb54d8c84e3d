"""What a typed command and its scripts say: launchers, ranks, folders. Pure; shell is only read."""
