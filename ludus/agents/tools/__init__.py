"""Tools that a model may call: written as verl's users write them, opened and closed once for a trajectory."""
