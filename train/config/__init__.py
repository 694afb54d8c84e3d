"""What a person can say about a training: keys, their spellings, what they come to."""
