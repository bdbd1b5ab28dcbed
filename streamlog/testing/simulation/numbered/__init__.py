"""Clients of one partition whose records carry numbers, and the model of what they saw.

Imports the checker's words, the simulated world's environment, codecs and the log's interface: no
node and no kind of log. Used by histories of topics in local files, by the workload of compacted
topics, and by tests.
"""
