"""What Linux offers to shut a process in: namespaces, mounts, privileges, limits, and a filter of system calls.

Only the standard library: the server of the sandbox imports this before it gives up everything else.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import re
import resource
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_NEW = _NEWNS | _NEWUTS | _NEWIPC | _NEWUSER | _NEWPID | _NEWNET | 0x2000000  # the last: NEWCGROUP
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _REC, _PRIVATE = 0x1, 0x2, 0x4, 0x20, 0x1000, 0x4000, 0x40000
_DETACH = 2
_PDEATHSIG, _DUMPABLE, _SECCOMP, _SECUREBITS, _SUBREAPER, _NO_NEW_PRIVS = 1, 4, 22, 28, 36, 38
_NOROOT_LOCKED = 0x3
_DEVICES = ("null", "zero", "full", "random", "urandom")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache")
_KILL = 9
_SLACK = 256  # processes and threads that the user may start later

_libc = ctypes.CDLL(None, use_errno=True)


class Refused(OSError):
    """The kernel refused a step of the isolation; the text names the step and the reason."""


def _call(what: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise Refused(number, f"{what}: {os.strerror(number)}")
    return result


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    _call(f"mount on {target}", _libc.mount(*texts[:3], ctypes.c_ulong(flags), texts[3]))


def _unshare(names: str, flags: int) -> None:
    _call(f"new namespaces ({names})", _libc.unshare(flags))


def _prctl(what: str, option: int, value: int = 0) -> None:
    _call(what, _libc.prctl(option, value, 0, 0, 0))


def watch_over(folder: str) -> None:
    """Make this process, without namespaces, the parent of all its descendants, whose folder is `folder`. It refuses
    other processes of the same user its memory and descriptors."""
    _prctl("subreaper", _SUBREAPER, 1)
    _prctl("dumpable", _DUMPABLE)
    os.chmod(folder, 0o777)
    os.chdir(folder)


class Home:
    """The processes' own namespace of this process, to return to after a child was started in a new one."""

    def __init__(self) -> None:
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def fork(self) -> int:
        """Fork; the child is process 1 of a new process namespace, and its end is the end of all in it."""
        _unshare("processes", _NEWPID)
        if pid := os.fork():
            _call("return to the own process namespace", _libc.setns(self._own, _NEWPID))
        return pid


def leave_the_machine(root: str, python: str) -> Home:
    """Give this process file systems, a network, and System V objects of its own; other users need a user namespace.

    root: an empty folder, on which the new root is mounted: Linux's own folders and `python`, all of them read-only.
    It has no /proc, no /home and no /sys. The network has no interface that is up.
    """
    if os.getuid():
        _become_root_of_users()
    _become_first_process()
    home = Home()
    _unshare("mounts, network, IPC, host name", _NEWNS | _NEWNET | _NEWIPC | _NEWUTS)
    _mount("none", "/", None, _REC | _PRIVATE)
    _mount("tmpfs", root, "tmpfs", _NOSUID | _NODEV, "size=1m,mode=755")
    covered: list[Path] = []
    for place in map(Path, (*_SYSTEM, *(f"/dev/{name}" for name in _DEVICES), python)):
        if not place.exists() or any(place.is_relative_to(parent) for parent in covered):
            continue
        inside = Path(f"{root}{place}")
        inside.parent.mkdir(parents=True, exist_ok=True)
        if place.is_symlink() and str(place) in _SYSTEM:  # Python's folder is mounted, wherever the link leads
            inside.symlink_to(place.readlink())
            continue
        inside.mkdir() if place.is_dir() else inside.touch()
        _mount(str(place), str(inside), None, _BIND)
        if place.parent != Path("/dev"):
            covered.append(place)
            _mount("none", str(inside), None, _REMOUNT | _BIND | _RDONLY | _kept_flags(inside))
    for name in ("tmp", "old"):
        Path(root, name).mkdir()
    _call("pivot_root", _libc.syscall(_number("pivot_root"), os.fsencode(root), os.fsencode(f"{root}/old")))
    os.chdir("/")
    _call("umount the machine's files", _libc.umount2(b"/old", _DETACH))
    os.rmdir("/old")
    _mount("none", "/", None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
    return home


def _become_root_of_users() -> None:
    """Become the only user of a new user namespace, who has all privileges in it."""
    uid, gid = os.getuid(), os.getgid()
    _unshare("users", _NEWUSER)
    for file, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        Path(f"/proc/self/{file}").write_text(text)


def _become_first_process() -> None:
    """Go on as process 1 of a new process namespace: only in one of its own a process may return to it.

    The process that calls this waits for the one that goes on, and ends with it.
    """
    _unshare("processes", _NEWPID)
    if pid := os.fork():
        os.closerange(0, 64)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)
    _prctl("pdeathsig", _PDEATHSIG, _KILL)


def _kept_flags(place: Path) -> int:
    """The flags of a mount that a user namespace may not take away, and those that are wanted anyhow."""
    have = os.statvfs(place).f_flag
    kept = {0x8: 0x8, 0x400: 0x400, 0x800: 0x800, 0x1000: 0x200000}  # noexec, noatime, nodiratime, relatime
    return _NOSUID | _NODEV | sum(flag for bit, flag in kept.items() if have & bit)


def confine(settings: Mapping[str, Any], uid: int | None, others: int, has_namespaces: bool) -> None:
    """Give this process and its children an empty /tmp of their own, if there are namespaces, and take from them, for
    good, every privilege, what the settings do not allow, and the system calls that programs do not need.

    settings: seconds, memory_mb, processes, file_mb; uid: of whom to become; None: stay who this is. others: processes
    that the kernel counts with a program's.
    """
    os.setsid()  # a signal to its process group would reach the server, in whatever namespace that is
    if has_namespaces:
        _unshare("mounts", _NEWNS)
        _mount("tmpfs", "/tmp", "tmpfs", _NOSUID | _NODEV, f"size={settings['file_mb']}m,nr_inodes=4096,mode=1777")
        os.chdir("/tmp")
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    elif os.getuid() == 0:  # of a user namespace
        _prctl("securebits", _SECUREBITS, _NOROOT_LOCKED)
        header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
        _call("capset", _libc.syscall(_number("capset"), header, ctypes.create_string_buffer(24)))
    _prctl("no_new_privs", _NO_NEW_PRIVS, 1)
    _prctl("dumpable", _DUMPABLE)
    _prctl("pdeathsig", _PDEATHSIG, _KILL)
    limits = {"CPU": max(1, round(settings["seconds"] + 0.5)), "NPROC": settings["processes"] + others, "NOFILE": 64}
    limits |= {"AS": settings["memory_mb"] << 20, "FSIZE": settings["file_mb"] << 20}
    for name, value in {**limits, "CORE": 0, "MEMLOCK": 0, "MSGQUEUE": 0}.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    lines = system_call_filter()
    code = ctypes.create_string_buffer(lines)
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(lines) // 8, ctypes.addressof(code)))
    _call("seccomp", _libc.prctl(_SECCOMP, 2, program, 0, 0))


def user_of_programs() -> int | None:
    """Whom root's programs run as: a number that no account has, another one for each server. None: not root.

    Refused: this root is that of a user namespace without other users.
    """
    if os.getuid():
        return None
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    first, _, count = max(ranges)  # the highest numbers
    span = min(count // 2, 1 << 22)
    if not span:
        raise Refused(1, "root may become no other user here (/proc/self/uid_map)")
    return first + count - 1 - span + os.getpid() % span


def counted_with(namespaces: bool) -> int:
    """How many more processes and threads a limit must allow, because the kernel counts others with a program's.

    It counts all of the user's, but for root's programs, whose user is their own, and in a user namespace since 5.14.
    """
    release = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
    if os.getuid() == 0 or (namespaces and release >= (5, 14)):
        return 0
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            count += len(list(process.glob("task/*"))) if process.stat().st_uid == os.getuid() else 0
    return count + _SLACK


#: Numbers of system calls on x86-64 and on 64-bit ARM. The first group is refused to programs; they need none of it.
_REFUSED = {
    "ptrace": (101, 117),
    "socket": (41, 198),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    "memfd_create": (319, 279),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "open_by_handle_at": (304, 265),
    "fsopen": (430, 430),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "pidfd_getfd": (438, 438),
    "personality": (135, 92),
}
_OTHERS = {"clone": (56, 220), "clone3": (435, 435), "capset": (126, 91)}
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def _machine() -> tuple[int, int]:
    """The column of the numbers, and the machine's own number in the filter."""
    if platform.machine() not in _MACHINES:
        raise Refused(38, f"the sandbox knows no system calls of {platform.machine()}")
    return _MACHINES[platform.machine()]


def _number(name: str) -> int:
    return (_REFUSED | _OTHERS)[name][_machine()[0]]


@functools.cache
def system_call_filter() -> bytes:
    """The filter that refuses the calls in _REFUSED, new namespaces, and calls of other machines; children of a process
    that has called this inherit it."""
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, permission, unknown, kill = 0x7FFF0000, 0x50001, 0x50026, 0x80000000
    lines = [(load, 0, 0, 4), (equal, 1, 0, _machine()[1]), (give, 0, 0, kill), (load, 0, 0, 0)]
    lines += [(at_least, 0, 1, 0x40000000), (give, 0, 0, permission)]
    for name in _REFUSED:
        lines += [(equal, 0, 1, _number(name)), (give, 0, 0, permission)]
    lines += [(equal, 0, 1, _number("clone3")), (give, 0, 0, unknown)]
    lines += [(equal, 0, 3, _number("clone")), (load, 0, 0, 16), (any_bit, 0, 1, _NEW), (give, 0, 0, permission)]
    lines += [(give, 0, 0, allow)]
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and theirs."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # it has just ended
        parents.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    pids = list(parents.get(pid, ()))
    for child in pids:
        pids += parents.get(child, ())
    return pids
