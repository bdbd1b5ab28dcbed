"""The command line: each command is one file, imported when it is called."""
