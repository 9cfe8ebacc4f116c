"""`python -m regard` is the same as the `regard` command."""

from regard.cli import main

main()
