"""A small transactional key-value store with etcd's contract, over several backends.

Knows nothing of streams. `interface` is the contract; `memory` and `rocks` implement it.
"""
