"""`python -m nttzoo` is the `nttzoo` command."""

from nttzoo.cli import main

main()
