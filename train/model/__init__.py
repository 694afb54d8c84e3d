"""The network: loaded, adapted, laid over the ranks, its loss, its memory and its export."""
