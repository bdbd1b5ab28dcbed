"""Checks of what the engine relies on: stores, disk, machine. Nothing here opens anything."""
