"""The Spark sink: rows staged by tasks and committed by the driver, exactly once.

Imports the cluster and options. Used by the source's class, which Spark asks for both.
"""
