"""TLS of a node's listeners: certificates that follow their files, and who presented one.

Imports settings, runtime and `server.context`. Used by listeners and the node's server.
"""
