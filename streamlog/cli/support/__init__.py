"""What several commands share: options, offline access to a cluster, a Spark session.

Imports `cli`'s output and state. Used by the commands.
"""
