"""Arguments and options shared by several commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

Overrides = Annotated[list[str] | None, Argument(metavar="KEY=VALUE", help="Such as trainer.optimizer.lr=2e-5.")]
Model = Annotated[str, Option(help="An embedded name, a local folder, or a hub id.")]
ModelArgument = Annotated[str, Argument(metavar="MODEL", help="An embedded name, a local folder, or a hub id.")]
Host = Annotated[str, Option(help="Address to listen on; one that other machines reach needs a key of yours.")]
Port = Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0 is any free one.")]
ServedModels = Annotated[
    list[str] | None,
    Option(
        "--model",
        metavar="NAME=ADDRESS",
        help="A model that is served elsewhere and may answer too, in OpenAI's protocol: its name there and where.",
    ),
]
ServedKey = Annotated[
    str | None, Option("--model-key-env", metavar="VARIABLE", help="Variable of the environment with their key.")
]
AdminKey = Annotated[
    str | None, Option(envvar="LUDUS_ADMIN_KEY", help="Key to administer the gateway; or one is made.")
]
TlsCert = Annotated[Path | None, Option(help="Serve HTTPS: PEM file of the certificate and those that signed it.")]
TlsKey = Annotated[Path | None, Option(help="PEM file of the certificate's private key.")]
JsonAlone = Annotated[bool, Option("--json", help="Print one JSON object as the only line.")]
JsonFigures = Annotated[bool, Option("--json", help="End with one line of JSON: the results.")]


def file_and_keys(first: str | None, others: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Split arguments into the file or folder (None: there is none, and `first` is a key) and KEY=VALUE pairs."""
    if first is not None and "=" in first and not Path(first).exists():
        return None, [first, *others]
    return None if first is None else Path(first), list(others)
