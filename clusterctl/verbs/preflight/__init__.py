"""Before anything starts: collect the facts, let the nodes reach each other, judge."""
