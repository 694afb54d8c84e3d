"""SSH: logins, host keys, jump hosts and the configuration of ssh."""
