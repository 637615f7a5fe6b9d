"""`python -m ludus` is `ludus`."""

from ludus.cli import main

main()
