"""Programs that drive a broker with a real client, one for each client.

Each takes HOST:PORT and a prefix for the names of its topics, and prints one JSON object a line for
each case: {"case": NAME, "error": null or what went wrong, "seconds": S}.

Those of `numbered` are for the kills of a broker, and print something else.
"""
