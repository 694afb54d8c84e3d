"""What several verbs of the command line share: grammar, options, output, hints."""
