"""The cleaner's rules, and whole cleanings of a log that is a plain list."""
