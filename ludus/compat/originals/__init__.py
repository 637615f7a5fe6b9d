"""The originals' own module names, where a script is to be run as it is."""
