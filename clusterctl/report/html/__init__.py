"""Pages to send: one HTML file each, without scripts and without anything from elsewhere."""
