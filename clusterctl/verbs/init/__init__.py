"""The verb `init`: drafts an inventory of hosts, looks at them, and writes what it found."""
