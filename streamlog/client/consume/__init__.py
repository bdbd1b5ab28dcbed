"""The consumer: positions, fetches under way, and records decoded for `poll()`.

Imports `client`'s channel, calls and settings. Used by `client.aio`, and by users through
`streamlog.client`.
"""
