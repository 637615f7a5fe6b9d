"""How Ludus starts itself.

Knows: the interpreter.  Knows not: which command.
"""

import sys

PROGRAM = (sys.executable, "-P", "-m", "ludus")
"""With -P no file in the working directory is taken for a library, nor a folder named `ludus` for this package."""
