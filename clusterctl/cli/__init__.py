"""One file a verb: arguments in, one use case run, its events handed to report."""
