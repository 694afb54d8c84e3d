"""Tables, progress and JSON for people and scripts; the only room that imports rich."""
