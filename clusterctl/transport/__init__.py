"""The only room that knows SSH: connections, host keys, calls to the agent on stdin."""
