"""What a check asks of a node: files, commands, ports, and whether the nodes reach each other."""
