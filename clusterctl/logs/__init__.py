"""Pure: merge the ranks' logs, fold equal lines, find the first cause."""
