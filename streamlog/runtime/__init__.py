"""What everything stands on: time, randomness, blocking work, disks. All of it is injected."""
