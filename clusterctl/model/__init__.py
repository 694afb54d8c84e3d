"""The values that nodes answer with and records hold, and the one reader that makes them."""
