"""Data that is tokenized as the training needs it."""
