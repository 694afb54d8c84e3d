"""Facts about the Python of the job and its packages."""
