"""A cluster of real sshd hosts on one machine, to try and to test everything without a GPU."""
