"""`python -m unmask` is the command `unmask`."""

from unmask.cli.main import main

main()
