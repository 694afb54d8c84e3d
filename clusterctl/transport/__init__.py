"""The only room that knows SSH: connections, host keys, the agent on stdin, rsync."""
