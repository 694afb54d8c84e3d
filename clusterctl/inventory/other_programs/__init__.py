"""Hosts in the formats of other programs: Slurm, Ansible, MPI, ssh."""
