"""Read the tensors of a TorchScript archive without running any of it.

OpenAI publishes CLIP as TorchScript. Such a file is a zip with code, a pickle that names tensors,
and their bytes. Loading it the usual way runs its code; this reader opens it as an archive, lets
the pickle build nothing but inert records and tensors, and never looks at the code.
"""

import pickle
import pickletools
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ucofia.errors import CheckpointError, UnsafeFileError

_DTYPES = {
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "DoubleStorage": torch.float64,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "BoolStorage": torch.bool,
    "ByteStorage": torch.uint8,
}


# Names of tensors, not their bytes; CLIP's has 0.3 MB. Each byte may cost 64 of memory, and time.
MOST_PICKLE_BYTES = 4 * 2**20
MOST_SPARE_BYTES = 64 * 2**20  # what a zip may unpack to beyond its size


class _Record:
    """A scripted module as data: its attributes, nothing else."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class _Reader(pickle.Unpickler):
    """An unpickler that knows records, storages and tensors, and refuses everything else."""

    def __init__(self, archive: zipfile.ZipFile, root: str, path: Path) -> None:
        super().__init__(BytesIO(_pickle_of(archive, f"{root}/data.pkl", path)))
        self._archive, self._root, self._path = archive, root, path
        self._storages: dict[str, Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Map the few names a tensor archive needs."""
        if module.startswith("__torch__"):
            return _Record
        if module == "torch" and name in _DTYPES:
            return name
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch.jit._pickle" and name.startswith(("build_", "restore_type_tag")):
            return _first
        raise UnsafeFileError(self._path, f"{module}.{name}")

    def persistent_load(self, reference: Any) -> Tensor:
        """Read the bytes that a tensor refers to."""
        _, storage, key, _, _ = reference
        if key not in self._storages:
            data = bytearray(self._archive.read(f"{self._root}/data/{key}"))
            empty = torch.empty(0, dtype=_DTYPES[storage])
            self._storages[key] = torch.frombuffer(data, dtype=_DTYPES[storage]) if data else empty
        return self._storages[key]


def _tensor(
    storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any
) -> Tensor:
    return storage.as_strided(size, stride, offset)


def _first(value: Any, *_: Any) -> Any:
    return value


def require_bounded(path: Path) -> None:
    """Refuse a zip that unpacks to far more than it is: torch compresses code, never tensors."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        packed = [entry for entry in entries if entry.compress_type != zipfile.ZIP_STORED]
        if any("/data/" in entry.filename for entry in packed):
            raise CheckpointError(path, "its tensors are compressed, which torch never does")
        total, size = sum(entry.file_size for entry in entries), path.stat().st_size
        if total > size + MOST_SPARE_BYTES:
            raise CheckpointError(path, f"it has {size} bytes and claims to hold {total}")
        pickles = [entry for entry in entries if entry.filename.endswith("data.pkl")]
        if any(entry.file_size > max(MOST_PICKLE_BYTES, size // 16) for entry in pickles):
            raise CheckpointError(path, "its data.pkl is larger than names of tensors can be")


def require_own_storage(path: Path, state: Mapping[str, Any]) -> None:
    """Refuse tensors that repeat few bytes many times; copying them would fill the memory."""
    for name, tensor in state.items():
        if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
            held = tensor.untyped_storage().nbytes() // tensor.element_size()
            if tensor.numel() > held:
                problem = f"{name} claims {tensor.numel()} numbers and has {held}"
                raise CheckpointError(path, problem)


def _pickle_of(archive: zipfile.ZipFile, name: str, path: Path) -> bytes:
    """Read the pickle, if it asks for no more memory than it has bytes."""
    data = archive.read(name)
    for operation, argument, _ in pickletools.genops(data):
        if operation.name in ("PUT", "LONG_BINPUT") and (argument or 0) > len(data):
            raise CheckpointError(path, "its pickle asks for memory that nothing in it needs")
    return data


def is_torchscript(path: Path) -> bool:
    """Return whether a file is a TorchScript archive, not an ordinary checkpoint."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return all tensors of the archive by their dotted names."""
    with zipfile.ZipFile(path) as archive:
        roots = [name.split("/")[0] for name in archive.namelist() if name.endswith("/data.pkl")]
        module = _Reader(archive, roots[0], path).load()
        return dict(_walk(module, ""))


def _walk(record: _Record, prefix: str) -> Iterator[tuple[str, Tensor]]:
    for name, value in vars(record).items():
        if isinstance(value, Tensor):
            yield prefix + name, value
        elif isinstance(value, _Record):
            yield from _walk(value, f"{prefix}{name}.")
