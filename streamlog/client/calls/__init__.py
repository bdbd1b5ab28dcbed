"""One function for each call: a request's protobuf made, its answer read. No I/O.

Imports generated code. Used by the blocking and the asyncio clients alike.
"""
