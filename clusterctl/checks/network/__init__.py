"""Checks of addresses, routes, links, ports and RDMA."""
