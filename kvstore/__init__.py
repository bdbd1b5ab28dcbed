"""A small transactional key-value store with etcd's contract, over several backends.

It knows nothing of streams. `interface` is the contract; `memory` and `rocks` implement it; `url`
and `opening` turn a metadata URL into an open store. Imports nothing of `streamlog` but the ground.
Used by metadata and the wiring.
"""
