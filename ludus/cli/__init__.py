"""The command line: `ludus train`, `rollout`, `eval`, `report`, `models`, `verify`, `gateway`."""
