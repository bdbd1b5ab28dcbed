"""Records on standard input and output: lines read, records formatted, topics copied.

Imports `cli`'s output. Used by the commands that produce and consume.
"""
