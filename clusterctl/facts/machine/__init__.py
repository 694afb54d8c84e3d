"""Facts about a node itself: kernel, limits, logins, clock."""
