"""The checkpoint to resume from: ask the nodes, compare their answers, choose."""
