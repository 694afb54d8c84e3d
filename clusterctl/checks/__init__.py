"""Pure rules over facts: a folder an area, a file a subject, and one registry."""
