"""What every kind of log does: conformance classes to inherit.

Imports the log's API, the codec and the clocks of tests. Used by tests alone.
"""
