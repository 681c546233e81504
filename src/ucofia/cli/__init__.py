"""The command `ucofia`: arguments -> one library call -> print.

Results go to stdout, talk and progress to stderr. Heavy imports wait inside the commands, so that
`ucofia --help` is quick. Exit codes: 0 fine, 1 our error in one line, 2 wrong use, 3 no match.
"""

import sys
from collections.abc import Sequence

from ucofia.cli import models as models
from ucofia.cli.app import app
from ucofia.errors import UCoFiAError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; turn our own errors into one line and exit code 1."""
    try:
        result = app(args=argv, standalone_mode=False)
    except UCoFiAError as error:
        print(f"ucofia: {error}", file=sys.stderr)
        return 1
    return result if isinstance(result, int) else 0
