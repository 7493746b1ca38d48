"""`python -m starc`."""

from starc.cli import main

main()
