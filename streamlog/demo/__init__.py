"""The demonstration behind `streamlog demo`: a real node, real log lines, a real kill -9.

Imports the client and starts the node by its command. Used by `streamlog demo`, the Spark
demonstration, tests and benchmarks.
"""
