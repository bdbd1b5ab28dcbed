"""The Stream API on the engine: StreamClient and Stream, as users of the library call them.

Imports the engine. Used by staging and by `streamlog.wiring`.
"""
