"""The agent: loaded from stdin, answers one request over its call channel."""
