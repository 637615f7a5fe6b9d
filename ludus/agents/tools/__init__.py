"""Tools that a model may call: written as for verl, and opened and closed once per trajectory."""
