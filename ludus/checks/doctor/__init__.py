"""The template doctor: what is appended after a reply under a chat template, what forks, and what makes it fork."""

from ludus.checks.doctor.construct import EXPLANATIONS, Construct, Place
from ludus.checks.doctor.conversation import Abilities
from ludus.checks.doctor.examine import Examination, Proof, Row, examine, subject_of, subject_of_source
from ludus.checks.doctor.play import Subject

__all__ = [
    "Abilities",
    "Construct",
    "EXPLANATIONS",
    "Examination",
    "Place",
    "Proof",
    "Row",
    "Subject",
    "examine",
    "subject_of",
    "subject_of_source",
]
