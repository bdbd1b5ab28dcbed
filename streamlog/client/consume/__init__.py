"""The consumer: positions, fetches under way, and records decoded for `poll()`.

    Consumer ◀──poll── PendingRecords ◀──batches── FetchState ◀──answers── node
                                                   Subscription  topics to look up

FetchState, Subscription and PendingRecords do no I/O; `client.aio` has a Consumer of its own for
them. Imports `client`'s channel, calls and settings. Used by users through `streamlog.client`.
"""
