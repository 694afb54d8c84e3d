"""Puts strict groups below every Python of a program: its folder goes into PYTHONPATH."""

from tests.strict_nccl.as_train import stand_in

stand_in()
