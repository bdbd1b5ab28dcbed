"""The producer: records gathered into batches, numbered, sent, and answered.

Imports `client`'s channel, calls and settings. Used by `client.aio`, and by users through
`streamlog.client`.
"""
