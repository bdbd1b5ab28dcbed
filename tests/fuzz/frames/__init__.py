"""Requests of Kafka's clients, damaged by the million, given to a node.

    record     runs the clients' programs and keeps their requests in `recorded.jsonl.gz`
    corpus     those requests, for topics that exist now, and random ones of every version
    fields     where the fields of a request lie in its bytes
    damage     changes a request: bytes, lengths, counts, tags, fields of another one, versions
    client     a client without a socket, and what it may expect for what it has sent
    answers    whether bytes are the answer of an API's version, by two decoders
    world      a node's services over a real engine, put in order now and then
    findings   what is wrong: tracebacks, ends by a bug, answers that are none
    run        all of it, for so many requests

`make fuzz-kafka FRAMES=N` is the long run, `test_frames.py` the short one.
"""
