"""Bytes kept in memory: the tails of streams, decoded blocks, decoded index sections."""
