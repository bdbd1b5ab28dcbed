"""Programs that write numbered records until their input ends, one for each client.

Each takes HOST:PORT, the name of a topic and the count of its partitions. Every partition gets the
records "CLIENT 0", "CLIENT 1" and so on. What a program prints, a line for each:

    ready                            it has started, and begins when its input has a line
    sent COUNT                       each partition is given COUNT records from now on
    acked PARTITION NUMBER OFFSET
    failed PARTITION NUMBER REASON

When its input ends, it waits for the answers that are missing, and ends with exit code 0.

Idempotence is what the client does by default, or its one setting; batches are small, so that
several are under way. Back-offs are short: a client meets the node as soon as it is back.
"""
