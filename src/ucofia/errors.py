"""Every error a user can meet: what happened, with which value, and what to do."""

from collections.abc import Sequence
from difflib import get_close_matches


class UCoFiAError(Exception):
    """The root of all errors that this package raises on purpose."""


class EmptyInputError(UCoFiAError):
    """A text without words or a video without frames."""

    def __init__(self, what: str, rows: Sequence[int]) -> None:
        self.what, self.rows = what, list(rows)
        part = {"text": "words", "video": "frames"}[what]
        super().__init__(
            f"{what} {_some(rows)} has no {part}, so nothing can be compared with it. "
            f"Leave it out, or give it at least one of its {part}."
        )


class NotFiniteError(UCoFiAError):
    """A feature is NaN or infinite."""

    def __init__(self, what: str, rows: Sequence[int]) -> None:
        self.what, self.rows = what, list(rows)
        super().__init__(
            f"the feature of {what} {_some(rows)} is NaN or infinite. "
            f"Check the input for broken values, and the weights with: ucofia doctor"
        )


class UnknownNameError(UCoFiAError):
    """A preset, backbone or setting that does not exist."""

    def __init__(self, kind: str, name: str, known: Sequence[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(self.known)}."
        super().__init__(f"unknown {kind} {name!r}; {hint}")


class SettingError(UCoFiAError):
    """A setting has a value that cannot work."""

    def __init__(self, setting: str, value: object, rule: str) -> None:
        self.setting, self.value = setting, value
        super().__init__(f"{setting} is {value!r}, but {rule}.")


class MissingExtraError(UCoFiAError):
    """An optional part of the package is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f'{what} is not installed. Install it: pip install "ucofia[{extra}]"')


def _some(rows: Sequence[int], most: int = 5) -> str:
    shown = ", ".join(str(row) for row in rows[:most])
    return shown if len(rows) <= most else f"{shown} and {len(rows) - most} more"
