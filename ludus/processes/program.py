"""The command line with which Ludus starts itself.

Knows: the interpreter.  Knows not: which command.
"""

import sys

PROGRAM = (sys.executable, "-P", "-m", "ludus")
"""-P: files in the working directory do not shadow libraries, nor does a folder named `ludus` shadow this package."""
