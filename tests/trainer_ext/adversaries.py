"""Programs that attack the sandbox, their tests, or the machine.

ATTACKS define `attack()`, which says whether the attack worked. FORGERIES define `square`, wrongly, and try to pass its
tests. FLOODS are to take what the machine has, and must end in time.
"""

from __future__ import annotations

ATTACKS = {
    "reads root's home": """
import os, sys
def attack():
    try: return bool(set(os.listdir("/root")) - set(sys.base_prefix.split("/")))
    except OSError: return False
""",
    "reads a home folder": """
import os
def attack():
    homes = [os.path.expanduser("~"), "/home"]
    return any(os.path.isdir(home) and os.listdir(home) for home in homes)
""",
    "reads the run's files": """
def attack():
    try: return bool(open(SECRET_FILE).read())
    except OSError: return False
""",
    "lists the machine's root": """
import os
def attack():
    return bool({"proc", "sys", "home", "mnt", "var", "work", "run", "opt"} & set(os.listdir("/")))
""",
    "reads secrets of the environment": """
import os
def attack():
    return any("SECRET" in key or "secret" in value for key, value in os.environ.items())
""",
    "reads the parent's environment": """
import os
def attack():
    for pid in ("1", "self", str(os.getppid())):
        try: return bool(open(f"/proc/{pid}/environ", "rb").read())
        except OSError: pass
    return False
""",
    "mounts proc": """
import ctypes, os
def attack():
    os.mkdir("/tmp/proc")
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.mount(b"proc", b"/tmp/proc", b"proc", 0, None) == 0
""",
    "makes file systems writable": """
import ctypes
def attack():
    return ctypes.CDLL(None).mount(b"none", b"/usr", None, 0x20 | 0x1000, None) == 0
""",
    "unmounts": """
import ctypes
def attack():
    return ctypes.CDLL(None).umount2(b"/tmp", 2) == 0
""",
    "makes a user namespace": """
import ctypes
def attack():
    libc = ctypes.CDLL(None)
    return any(libc.unshare(flag) == 0 for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000))
""",
    "clones into a user namespace": """
import ctypes
def attack():
    pid = ctypes.CDLL(None).syscall(56, 0x10000000 | 17, 0, 0, 0, 0)
    return pid > 0
""",
    "changes its root": """
import os
def attack():
    try: os.chroot("/tmp")
    except OSError: return False
    return True
""",
    "becomes root": """
import os
def attack():
    before = os.getuid()
    for change in (os.setuid, os.seteuid):
        try: change(0)
        except OSError: pass
    try: os.chown("/tmp", 1, 1)
    except OSError: return before != 0 and os.getuid() == 0
    return True
""",
    "connects by TCP": """
import socket
def attack():
    try: socket.create_connection(("127.0.0.1", 22), timeout=1)
    except ConnectionRefusedError: return True
    except OSError: return False
    return True
""",
    "sends by UDP": """
import socket
def attack():
    try: return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("1.1.1.1", 53)) > 0
    except OSError: return False
""",
    "opens a Unix socket": """
import socket
def attack():
    try: socket.socket(socket.AF_UNIX).bind("\\0abstract")
    except OSError: return False
    return True
""",
    "asks for a name": """
import socket
def attack():
    try: return bool(socket.gethostbyname("localhost.example.org"))
    except OSError: return False
""",
    "asks the kernel's network": """
import socket
def attack():
    try: socket.socket(16, socket.SOCK_RAW, 0)
    except OSError: return False
    return True
""",
    "signals the parent": """
import os
def attack():
    try: os.kill(os.getppid(), 9)
    except (ProcessLookupError, PermissionError): return False
    return os.getppid() != 0
""",
    "signals everything": """
import os
def attack():
    try: os.kill(-1, 9)
    except ProcessLookupError: return False
    return True
""",
    "signals a process by number": """
import os
def attack():
    worked = 0
    for pid in range(2, 5000):
        try: os.kill(pid, 9); worked += 1
        except OSError: pass
    return worked > 0
""",
    "traces": """
import ctypes
def attack():
    return any(ctypes.CDLL(None).ptrace(request, pid, 0, 0) == 0 for request in (0, 16) for pid in (0, 1, 2))
""",
    "writes where Python is": """
import os, sys
def attack():
    places = [os.path.dirname(os.__file__), sys.prefix, "/usr/lib", "/", "/dev", "/bin", "/etc"]
    for place in places:
        try: open(os.path.join(place, "rlsweep_was_here.py"), "w").write("x"); return True
        except OSError: pass
    return False
""",
    "plants a compiled module": """
import os, py_compile
def attack():
    open("/tmp/json.py", "w").write("x = 1")
    try: py_compile.compile("/tmp/json.py", os.path.join(os.path.dirname(os.__file__), "__pycache__", "json.pyc"))
    except OSError: return False
    return True
""",
    "links out of its folder": """
import os
def attack():
    os.symlink("/../../../../root", "/tmp/way")
    os.symlink(SECRET_FILE, "/tmp/file")
    for path in ("/tmp/file", "/tmp/way/.bashrc", "/../../../etc/passwd", "/tmp/../../etc/shadow"):
        try: return bool(open(path).read())
        except OSError: pass
    return False
""",
    "opens devices": """
import os
def attack():
    for path in ("/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda", "/dev/tty", "/dev/shm/x", "/dev/nvidia0"):
        try: os.open(path, os.O_RDWR | os.O_CREAT); return True
        except OSError: pass
    try: os.mknod("/tmp/disk", 0o60666, os.makedev(254, 0)); os.open("/tmp/disk", os.O_RDONLY); return True
    except OSError: return False
""",
    "raises its limits": """
import resource
def attack():
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE):
        try: resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)); return True
        except (ValueError, OSError): pass
    return False
""",
    "keeps System V memory": """
import ctypes
def attack():
    return ctypes.CDLL(None).shmget(4711, 1 << 20, 0o1666) >= 0
""",
    "keeps a file in memory": """
import os
def attack():
    try: os.memfd_create("x")
    except OSError: return False
    return True
""",
    "leaves a file for the next program": """
import os
def attack():
    before = os.path.exists("/tmp/left")
    open("/tmp/left", "w").write("x")
    return before
""",
    "imports torch or the project": """
def attack():
    import importlib
    for name in ("torch", "numpy", "trainer_ext", "launcher", "yaml"):
        try: importlib.import_module(name); return True
        except ImportError: pass
    return False
""",
    "finds the tests in memory": """
import gc, re, sys
def attack():
    texts = [repr(one) for one in gc.get_objects() if type(one) in (dict, list, tuple)]
    frame = sys._getframe()
    while frame:
        texts += [repr(value) for value in frame.f_locals.values()]
        frame = frame.f_back
    return any(re.search("9173(?=8264)", text) for text in texts)
""",
    "finds the tests in raw memory": """
import ctypes, gc, re
def attack():
    objects = gc.get_objects()
    objects += gc.get_referents(*objects)
    pools = {id(one) & ~0x3FFF for one in objects}
    return len(pools) < 10 or any(
        re.search(b"9173(?=8264)", ctypes.string_at(pool, 0x4000)) for pool in pools)
""",
    "signals its group": """
import os
def attack():
    try: os.killpg(0, 9)
    except OSError: pass
    return False
""",
    "reads the standard input": """
import os, sys
def attack():
    return bool(os.read(0, 100000)) or bool(sys.stdin and sys.stdin.read())
""",
    "reads all descriptors": """
import os, select
def attack():
    for one in range(64):
        try: ready = select.select([one], [], [], 0)[0]
        except (OSError, ValueError): continue
        if ready and one > 2:
            try: return b"assert" in os.read(one, 100000)
            except OSError: pass
    return False
""",
}

_SQUARE = "\ndef square(x):\n    return 0\n"

FORGERIES = {
    "ends before the tests": "import os\nos._exit(0)",
    "ends in the function": "import os\ndef square(x):\n    os._exit(0)",
    "raises SystemExit": "import sys\ndef square(x):\n    sys.exit(0)",
    "raises SystemExit at import": f"import sys\n{_SQUARE}sys.exit(0)",
    "prints a verdict": """
import os
for one in range(64):
    try: os.write(one, b'PPE')
    except OSError: pass
    try: os.write(one, b'{"events": "PPE", "timed_out": false, "again": true}')
    except OSError: pass
def square(x): return 0
""",
    "answers before it is asked": """
import json, os, struct
text = json.dumps(["tuple", "value", True]).encode()
for one in range(3, 64):
    try:
        for _ in range(100): os.write(one, struct.pack("!I", len(text)) + text)
    except OSError: pass
def square(x): return 0
""",
    "is equal to everything": """
class Equal:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
def square(x): return Equal()
""",
    "is an int that is equal to everything": """
class Equal(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = int.__hash__
def square(x): return Equal(3)
""",
    "changes builtins": """
import builtins
builtins.AssertionError = type("Quiet", (BaseException,), {})
builtins.isinstance = lambda *a: True
builtins.abs = lambda x: 0
builtins.exec = lambda *a: None
def square(x): return 0
""",
    "changes the checker": """
import sys, gc
for one in gc.get_objects():
    if type(one) is dict and "_case" in one: one["_case"] = lambda *a: b"P"
    if type(one) is dict and "check" in one: one["check"] = lambda *a: None
for module in list(sys.modules.values()):
    for name in ("same_output", "_called", "_case", "report"):
        if hasattr(module, name): setattr(module, name, lambda *a: b"P")
def square(x): return 0
""",
    "changes the frames of its caller": """
import sys
def square(x):
    frame = sys._getframe()
    while frame:
        frame.f_globals["PASSED"] = frame.f_globals["FAILED"] = b"P"
        frame = frame.f_back
    return 0
""",
    "traces every call": f"import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\n{_SQUARE}",
    "acts at its end": """
import atexit, os
def verdict():
    for one in range(64):
        try: os.write(one, b'PPE')
        except OSError: pass
atexit.register(verdict)
def square(x): return 0
""",
    "acts when it is deleted": """
import os
class Last:
    def __del__(self):
        for one in range(64):
            try: os.write(one, b'PPE')
            except OSError: pass
last = Last()
def square(x): return Last()
""",
    "sends a pickle": """
import os
class Bomb:
    def __reduce__(self): return os.system, ("true",)
def square(x): return Bomb()
""",
    "closes every descriptor": "import os\nos.closerange(0, 64)" + _SQUARE,
    "raises what ends no test": "def square(x):\n    raise KeyboardInterrupt",
    "raises AssertionError": "def square(x):\n    raise AssertionError",
    "raises StopIteration": "def square(x):\n    raise StopIteration",
    "returns the question": "def square(x):\n    return x",
    "returns a generator": "def square(x):\n    yield x * x",
    "returns not a number": "def square(x):\n    return float('nan')",
    "recurses": "import sys\nsys.setrecursionlimit(10**9)\ndef square(x):\n    return square([x] * 1000)",
    "returns endless depth": "def square(x):\n    a = []\n    for _ in range(10**5): a = [a]\n    return a",
    "returns itself": "def square(x):\n    a = []\n    a.append(a)\n    return a",
    "returns a very long text": "def square(x):\n    return 'x' * (1 << 27)",
    "crashes the interpreter": "import ctypes\ndef square(x):\n    ctypes.string_at(0)",
    "takes the names of the tests": """
def check(*a): return True
def candidate(*a): return 9
def square(x): return 0
def range(*a): return ()
""",
    "is no Python": "def square(x: return x * x",
    "breaks the parser": "(" * 100000,
    "has null characters": "def square(x):\n    return 0\n\0",
    "is empty": "",
}

FLOODS = {
    "fork bomb": """
import os
while True:
    try: os.fork()
    except OSError: pass
""",
    "memory bomb": """
held = []
def square(x):
    while True: held.append(bytearray(1 << 24))
""",
    "memory bomb in children": """
import os
for _ in range(20):
    try:
        if not os.fork(): break
    except OSError: pass
held = []
try:
    while True: held.append(bytearray(1 << 22))
except MemoryError: pass
while True: pass
""",
    "endless loop": "while True: pass",
    "endless loop that ignores signals": """
import signal
for one in range(1, 65):
    try: signal.signal(one, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True:
    try:
        while True: pass
    except BaseException: pass
""",
    "sleep": "import time\ndef square(x):\n    time.sleep(3600)",
    "gigabytes of output": "import sys\nwhile True: sys.stdout.write('x' * (1 << 20)); sys.stderr.write('x')",
    "huge files": """
import os
number = 0
while True:
    number += 1
    try:
        with open(f"/tmp/{number}", "wb") as file:
            while True: file.write(b"x" * (1 << 20))
    except OSError: pass
    if number > 100: break
def square(x): return 0
""",
    "many files": """
number = 0
try:
    while True:
        number += 1
        open(f"/tmp/{number}", "w").close()
except OSError: pass
def square(x): return 0
""",
    "many descriptors": """
import os
held = []
try:
    while True: held.append(os.open("/dev/null", 0))
except OSError: pass
def square(x): return 0
""",
    "threads": """
import threading, time
while True:
    try: threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    except RuntimeError: break
def square(x): time.sleep(3600)
""",
    "zombies": """
import os
for _ in range(1000):
    try:
        if not os.fork(): os._exit(0)
    except OSError: break
def square(x): return 0
""",
    "a daemon": """
import os, time
if not os.fork():
    os.setsid()
    if os.fork(): os._exit(0)
    while True: time.sleep(3600)
def square(x): return 0
""",
    "a daemon that ignores signals": """
import os, signal, time
if not os.fork():
    os.setsid()
    for one in range(1, 65):
        try: signal.signal(one, signal.SIG_IGN)
        except (OSError, ValueError): pass
    if os.fork(): os._exit(0)
    while True: pass
os._exit(0)
""",
    "a stopped process": """
import os, signal
if not os.fork(): os.kill(os.getpid(), signal.SIGSTOP)
def square(x): return 0
""",
    "arithmetic without end": "def square(x):\n    return 9 ** 9 ** 9",
    "a pattern without end": "import re\ndef square(x):\n    return re.match('(a+)+$', 'a' * 99 + 'b')",
    "endless output to the tests": """
import os
data = b"\\x00\\x00\\x00\\x01x" * 10000
for one in range(3, 64):
    try:
        while True: os.write(one, data)
    except OSError: pass
""",
}
