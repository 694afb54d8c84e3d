"""Facts about a node's network: interfaces, routes, firewall, RDMA."""
