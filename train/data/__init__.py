"""From lines of text to batches of token ids."""
