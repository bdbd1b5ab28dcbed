"""The metadata protocol, model-checked: every interleaving up to a scenario's budget of faults.

`explorer` walks breadth first. `log/` is the protocol of docs/protocol.md as a whole; the other
modules each look at one part of it with a smaller state, and so further: `disk_wal`, `id_windows`,
`producers`, `closing`, `compactors`, `staging`. `scenarios` has the budgets, `mutants` the seeded
faults that must be found. There is no clock: a seal or a transfer (a *move* in the models) may
happen at any moment, which covers every lease and skew. `x` is the compaction counter, `k` the
checkpoint pointer. Requests arrive arbitrarily late, also after a crash or twice; answers get lost.

`python -m tests.model --full` explores the large budgets and prints the tables.
"""
