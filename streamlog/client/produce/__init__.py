"""The producer: records gathered into batches, numbered, sent, and answered.

    Producer ──append──▶ ProducerCore ◀──next_message, answered── Sender ──▶ node
                           Accumulator        open and ready batches, by partition
                           PartitionSequencer sequence numbers and retries (state.py)
                           IdentityRequests   producer id and epoch

The core does no I/O; `client.aio` has a Producer and a Sender of its own for the same core. Imports
`client`'s channel, calls and settings. Used by users through `streamlog.client`.
"""
