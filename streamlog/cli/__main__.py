"""`python -m streamlog.cli` is the `streamlog` command."""

from streamlog.cli.main import main

main()
