"""How long work reports how far it is."""

from collections.abc import Callable

# (what is being done, how much is done, how much there is or None); the command line and the
# server show it.
Progress = Callable[[str, int, int | None], None]
