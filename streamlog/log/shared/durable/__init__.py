"""What follows when an append is durable: what readers see, and the meta records of the data.

Imports `meta` and `state`. Used by `append` and SharedLog.
"""
