"""What users of other frameworks already have, read for Ludus."""

from ludus.migrate.areal import import_areal
from ludus.migrate.art import find_models, import_model
from ludus.migrate.report import Entry, Report
from ludus.migrate.verl import import_verl

__all__ = ["Entry", "Report", "find_models", "import_areal", "import_model", "import_verl"]
