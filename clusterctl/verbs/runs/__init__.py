"""What is known of runs: records here, the nodes' answers, status, history, pruning."""
