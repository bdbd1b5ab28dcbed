"""A producer's transactions: what the application may call when, and what the coordinator is asked.

    ProducerTransactions (blocking, or client.aio) ──begin, commit, abort──▶ TransactionManager
                                                ▲ answers   │ requests, end of batches
                                              Sender ◀──────┘──▶ ProducerCore

TransactionManager does no I/O; the blocking and the asyncio producer share it. Imports `client`'s
calls and settings. Used by `client.produce` and `client.aio`.
"""
