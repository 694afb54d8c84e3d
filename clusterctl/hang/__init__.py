"""Says why a run stands still, from what its nodes answer to `dump`."""
