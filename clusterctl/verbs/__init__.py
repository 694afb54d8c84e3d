"""One file a use case: a function that calls `emit` with frozen events and returns its result."""
