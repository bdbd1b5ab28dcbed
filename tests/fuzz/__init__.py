"""Every byte parser against damaged, grown and made-up bytes.

A parser gives the value, or one of its typed errors; never another exception, and never more
memory or work than its input and its own stated limit allow. `parsers` lists them with valid
samples, `mutations` damages these with their shape in mind (and mends checksums, so that what lies
behind one is reached), `bounds` measures. `corpus/` holds small files, one folder for each parser:
`python -m tests.fuzz.write_corpus` writes what is missing.
"""
