"""What several services share: partitions in turn, records in plain form, whose topic a name is.

Imports the services' requests and ports. Used by the services alone.
"""
