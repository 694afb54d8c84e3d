"""One file a use-case: a generator of frozen events that ends in its result."""
