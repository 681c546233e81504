"""Settings of a server, and the limits that protect it.

From the command line, else from variables `UCOFIA_SERVE_...`, else from a TOML file, else these
defaults, which suit one person on one machine.
"""

import difflib
import os
import tomllib
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from ucofia.errors import SettingError
from ucofia.video.limits import Limits

PREFIX = "UCOFIA_SERVE_"
CONFIG_VARIABLE = f"{PREFIX}CONFIG"  # names the file

# What one upload may cost its decoder: a query is a clip or a picture, not an archive.
UPLOAD_LIMITS = Limits(
    duration_seconds=4 * 3600.0,
    frames=64,
    memory_bytes=2 << 30,
    stall_seconds=10.0,
    seconds=30.0,
)


class ServeSettings(BaseSettings):
    """The settings of a server; unknown names are errors."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix=PREFIX)

    indexes: tuple[str, ...] = ()  # folders of the indexes; the first is the default
    host: str = "127.0.0.1"
    port: int = Field(default=8642, ge=0, le=65535)
    base_path: str = ""  # the page is at this path, as a proxy shows it: /videos
    device: str = "cpu"
    cluster: str | None = None  # a Ray cluster that does the searching: auto, local, an address
    cache_gb: float = Field(default=50.0, ge=0)  # vectors of an object store, per actor of it
    token: str | None = Field(
        default=None, repr=False
    )  # None: every client that reaches the port is answered
    hosts: tuple[str, ...] = ()  # host names besides localhost that are accepted
    waiting: int = Field(
        default=32, ge=1
    )  # requests that may wait for the model; more are refused
    upload_bytes: int = Field(default=256 << 20, ge=1)
    upload_seconds: float = Field(default=120.0, gt=0)  # from the first to the last byte of a body
    upload_limits: Limits = UPLOAD_LIMITS
    index_folders: tuple[Path, ...] = ()  # POST /api/index may add what lies below these
    header_seconds: float = Field(
        default=10.0, gt=0
    )  # from the first byte of a request to its body
    connections: int = Field(default=512, ge=8)
    connections_per_address: int = Field(default=128, ge=4)
    drain_seconds: int = Field(
        default=10, ge=1
    )  # for requests that are under way when the server ends
    thumbnails: Path | None = None  # where they are kept; by default the user's cache folder
    thumbnail_bytes: int = Field(default=256 << 20, ge=1 << 20)  # kept on disk at most
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    access_log: Literal["none", "text", "json"] = "none"

    @field_validator("base_path")
    @classmethod
    def _rooted(cls, value: str) -> str:
        value = value.strip("/")
        return f"/{value}" if value else ""

    @field_validator("token")
    @classmethod
    def _fits_a_header(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("an empty token protects nothing")
        if value is not None and not (value.isascii() and value.isprintable()):
            raise ValueError("a header carries only plain letters, digits and signs (ASCII)")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read nothing but arguments: `load` is the one that looks at environment and file."""
        return (init_settings,)

    @classmethod
    def load(cls, file: Path | None = None, **given: Any) -> Self:
        """Read settings: what is given, else the environment, else a TOML file, else defaults.

        Args:
            file: A TOML file; by default the one that `UCOFIA_SERVE_CONFIG` names, if any.
            given: Settings that win over all others; None counts as not given.

        Raises:
            SettingError: For an unknown name or a value that cannot work.
        """
        named = file or os.environ.get(CONFIG_VARIABLE)
        values = _from_file(Path(named)) if named else {}
        values |= EnvSettingsSource(cls)()
        values |= {name: value for name, value in given.items() if value is not None}
        try:
            return cls(**values)
        except ValidationError as error:
            raise _setting_error(error) from error


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SettingError("config", str(path), f"it cannot be read as TOML ({error})") from error


def _setting_error(error: ValidationError) -> SettingError:
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else "settings"
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, ServeSettings.model_fields, n=1)
        rule = f"there is no such setting{f'; did you mean {near[0]!r}?' if near else ''}"
    else:
        rule = f"it cannot be ({first['msg']})"
    shown = "..." if name == "token" else first["input"]
    return SettingError(name, shown, rule)
