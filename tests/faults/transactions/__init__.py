"""The process ends before and after each step of a transaction; what is left is whole.

`world.py` runs a coordinator over the real engine in virtual time and ends it at a step; `steps.py`
says which steps there are; `test_steps.py` ends it at each of them, with both modes of the WAL.
"""
