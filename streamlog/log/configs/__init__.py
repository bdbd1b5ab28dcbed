"""Kafka's settings of topics, and the broker settings behind them: a class and tables. Pure.

It imports the ground alone. `log/api`, `log/broker` and the settings module stand on it.
"""
