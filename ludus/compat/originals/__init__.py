"""Makes the frameworks' own module names (`areal`, `art`, `verl`, `realhf`) importable, for unmodified scripts."""
