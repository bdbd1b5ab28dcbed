"""TLS of the listeners and of our clients, over real sockets."""
