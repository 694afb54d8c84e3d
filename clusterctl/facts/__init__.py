"""Pure: the raw answers of a node become `NodeFacts`; a parser a source."""
