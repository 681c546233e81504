"""Run something in a forked process, and kill it right before its n-th file operation.

The kernel stops every thread of the process before it creates, writes, syncs, renames or deletes
a file (a seccomp filter asks this process, by ptrace), so that a kill falls exactly between
two operations, also those of libraries. Linux on x86-64 only.
"""

import ctypes
import os
import platform
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path

IS_SUPPORTED = sys.platform == "linux" and platform.machine() == "x86_64"

# Calls with the file descriptor first, those that name paths, and those that open.
_BY_DESCRIPTOR = {1: "write", 18: "pwrite", 20: "writev", 74: "fsync", 75: "fdatasync"}
_BY_DESCRIPTOR |= {77: "ftruncate", 285: "fallocate", 296: "pwritev", 326: "copy_file_range"}
_BY_PATH = {76: "truncate", 82: "rename", 83: "mkdir", 84: "rmdir", 86: "link", 87: "unlink"}
_BY_PATH |= {88: "symlink", 90: "chmod", 258: "mkdirat", 263: "unlinkat", 264: "renameat"}
_BY_PATH |= {265: "linkat", 266: "symlinkat", 268: "fchmodat", 316: "renameat2"}
_OPEN, _OPENAT = 2, 257
_NAMES = _BY_DESCRIPTOR | _BY_PATH | {_OPEN: "create", _OPENAT: "create"}

_CONT, _SEIZE, _SYSCALL_INFO = 7, 0x4206, 0x420E
_FORK, _VFORK, _CLONE, _EXEC, _SECCOMP, _EXITKILL = 2, 4, 8, 16, 0x80, 0x100000
_EVENT_SECCOMP = 7
_WALL = 0x40000000  # threads too
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 4]


def run(
    work: Callable[[], object], below: Path, *, kill_before: int | None = None
) -> tuple[int, list[str]]:
    """Run `work` in a process of its own.

    Args:
        work: What to do; an exception is printed and gives exit code 1.
        below: Writes into files outside this folder (pipes, terminals) are not counted.
        kill_before: The number, from 1, of the operation that is not carried out any more.

    Returns:
        The exit code (-9 when it was killed), and the names of the operations that were begun.
    """
    is_traced, go = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        try:
            os.close(go)
            os.read(is_traced, 1)
            _stop_before_file_operations()
            work()
        except BaseException as error:
            print(f"  {type(error).__name__}: {error}", flush=True)
            os._exit(1)
        os._exit(0)
    os.close(is_traced)
    options = _FORK | _VFORK | _CLONE | _EXEC | _SECCOMP | _EXITKILL
    if _libc.ptrace(_SEIZE, child, None, options):
        os.kill(child, signal.SIGKILL)
        raise OSError(ctypes.get_errno(), "ptrace is not allowed here")
    os.close(go)
    return _follow(child, str(below.resolve()), kill_before)


def _follow(child: int, below: str, kill_before: int | None) -> tuple[int, list[str]]:
    """Let the process and all it starts go on from stop to stop, until none is left."""
    code, begun = 0, list[str]()
    while True:
        try:
            pid, status = os.waitpid(-1, _WALL)
        except ChildProcessError:
            return code, begun
        if not os.WIFSTOPPED(status):
            code = os.waitstatus_to_exitcode(status) if pid == child else code
            continue
        event, passed_on = status >> 16, 0
        if event == _EVENT_SECCOMP:
            if (operation := _operation(pid, below)) is not None:
                begun.append(operation)
                if len(begun) == kill_before:
                    os.kill(child, signal.SIGKILL)
        elif not event:
            passed_on = os.WSTOPSIG(status)
        _libc.ptrace(_CONT, pid, None, passed_on)


def _operation(pid: int, below: str) -> str | None:
    """Name the operation before which a thread was stopped; None if it is none of a file."""
    info = ctypes.create_string_buffer(88)
    _libc.ptrace(_SYSCALL_INFO, pid, len(info), ctypes.addressof(info))
    number, first = struct.unpack_from("QQ", info, 24)
    if number in _BY_DESCRIPTOR:
        try:
            if not os.readlink(f"/proc/{pid}/fd/{first}").startswith(below):
                return None
        except OSError:
            return None
    return _NAMES.get(number)


def _stop_before_file_operations() -> None:
    """Install the filter: for this process and all that it starts."""
    load, equal, some_bits, answer = 0x20, 0x15, 0x45, 0x06
    trace, allow = 0x7FF00000, 0x7FFF0000
    code = [(load, 0, 0, 0)]  # the number of the call
    for number in _BY_DESCRIPTOR | _BY_PATH:
        code += [(equal, 0, 1, number), (answer, 0, 0, trace)]
    for number, flags_at in ((_OPEN, 24), (_OPENAT, 32)):
        code += [(equal, 0, 3, number), (load, 0, 0, flags_at)]
        code += [(some_bits, 0, 1, os.O_CREAT | os.O_TRUNC), (answer, 0, 0, trace)]
        code += [(load, 0, 0, 0)]
    code += [(answer, 0, 0, allow)]
    packed = b"".join(struct.pack("HBBI", *one) for one in code)
    instructions = ctypes.create_string_buffer(packed, len(packed))
    program = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(instructions))
    no_new_privileges, set_seccomp, by_filter = 38, 22, 2
    assert _libc.prctl(no_new_privileges, 1, None, None, None) == 0
    assert _libc.prctl(set_seccomp, by_filter, program, None, None) == 0, ctypes.get_errno()
