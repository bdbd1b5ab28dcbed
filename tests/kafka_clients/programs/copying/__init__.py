"""Programs that copy one partition of a topic into another topic by transactions.

Each takes HOST:PORT, the input's topic and partition, the output's topic and count of partitions,
its transactional id, the number of its start, and a seed. It fences whoever had the id, looks for
the last record of its own in the output, read committed, and goes on behind it. A transaction
copies what one fetch brings, at most RECORDS_MAX records, record N to partition N % count, then
writes a marker to each partition that it wrote to, or to all, and commits or, at random, aborts and
begins again.

A record has the headers `in` ("PARTITION:OFFSET" of its original), `by` (the transactional id) and
`txn` (the transaction's name). A marker has `txn` alone, and the value "NAME RECORDS MARKERS". What
a program prints, a line for each, before what it announces and behind what it reports:

    ready             it has started, and begins when its input has a line
    place OFFSET      where it goes on
    began NAME
    aborting NAME     it never asks to commit this one
    committing NAME   it asks to; whether that was done is open until it says so
    committed NAME
    aborted NAME
    again REASON      a call failed; it is repeated, or the transaction is aborted

When its input ends, it finishes its transaction and ends with exit code 0. With an error that its
client calls fatal it ends with exit code FATAL, and whoever started it starts it again.
"""

RECORDS_MAX = 20
FATAL = 3
