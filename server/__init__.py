"""A node: services over an open engine, and the listeners that serve them.

Imports the wiring, the logs, the settings, and generated code in `grpc/` and `kafka/` alone. Called
by the command line; what it promises users is its protocols.
"""
