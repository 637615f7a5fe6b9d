"""`python -m ludus` is `ludus`."""

from ludus.cli.app import main

main()
