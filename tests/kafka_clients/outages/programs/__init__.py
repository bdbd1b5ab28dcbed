"""Programs of Kafka's clients that write, read and administer until they are told to stop.

Each is run with HOST:PORT, the prefix of its topics, the time-outs ("default" or "short"), the
milliseconds between two records and a record's size, and speaks in lines of fields with tabs
between them. What it is told: `late` (begin with the roles that start during an outage), `stop`
(write no more; the rest of its work goes on), the end of its input. What it says:

    ready                                      it works: all that follows is about records and calls
    acked   role  partition  offset  value     failed  role  value  error
    read    role  partition  offset  value     error   role  text
    call    name  seconds    error or nothing  flushed role

Roles are `writer` and `reader` on the topic PREFIX, from the start on, `late-writer` on the topic
PREFIX-late and `late-reader` on PREFIX from its first record, from `late` on. Calls of the admin
client go round until the end, each on its own, on PREFIX-admin.
"""
