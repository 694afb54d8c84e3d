"""What a user can set for a training: keys, their spellings, their values."""
