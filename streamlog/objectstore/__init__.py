"""Objects under keys: the one durable medium behind everything."""
