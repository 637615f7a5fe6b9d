from __future__ import annotations

import json

from ludus.algorithms.pack import LogitProcessing, TrainSequence, pack
from ludus.trainer.wire import rows_from_json, rows_to_json


def test_rows_come_back_as_they_were() -> None:
    """Numbers to the last bit, kept sets, penalties, biases and grammars included; so do rows without any."""
    logit_processing = LogitProcessing(3, presence_penalty=0.1, logit_bias=((4, -1.5), (9, 2.0)), grammar='start: "a"')
    plain = TrainSequence((5, 6, 7, 8), (1, 3), (0.1, 1 / 3), (1e-9, 0.2), (-0.1, -1e-30), (0, 7), (1.0, 0.7))
    processed = TrainSequence(
        (5, 6, 9, 4), (2, 3), (1.0, 2.0), (0.5, 0.5), (-1.0, -2.0), (1, 1), (1.0, 1.0),
        kept_ids=((3, 9), ()), logit_processings=(logit_processing, None), turns=(3, 4), episodes=(1, 1), groups=(0, 0),
    )  # fmt: skip
    for sequence in (plain, processed):
        rows = pack([sequence], row_tokens=16)
        assert rows_from_json(json.loads(json.dumps(rows_to_json(rows)))) == rows
