"""Run the command as `python -m ucofia`, which is what torchrun needs."""

import sys

from ucofia.cli import main

sys.exit(main())
