"""Programs that attack the sandbox, their tests, or the machine.

ATTACKS define `attack()`, which says whether the attack worked. FORGERIES define `square`, wrongly, and try to pass its
tests. FLOODS are to take what the machine has, and must end in time.
"""

from __future__ import annotations

from textwrap import indent

#: What the attacks have at hand: they read the variable SECRET_FILE, too.
_HELP = """
import ctypes, gc, os, re, resource, select, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def tried(call, *given):
    try: call(*given)
    except (OSError, ValueError, ImportError): return False
    return True
def read(path):
    try: return open(path, "rb").read()
    except OSError: return b""
def listed(path):
    try: return set(os.listdir(path))
    except OSError: return set()
"""

#: The body of `attack()`.
_BODIES = {
    "reads root's home": 'return bool(listed("/root") - set(sys.base_prefix.split("/")))',
    "reads the run's files": "return bool(read(SECRET_FILE))",
    "lists the machine's root": """
return bool({"proc", "sys", "home", "mnt", "var", "work", "run", "opt"} & set(os.listdir("/")))
""",
    "reads secrets of the environment": """
return any("SECRET" in key or "secret" in value for key, value in os.environ.items())
""",
    "reads the parent's environment": """
return any(read(f"/proc/{pid}/environ") for pid in ("1", "self", os.getppid()))
""",
    "mounts proc": """
os.mkdir("/tmp/proc")
return libc.mount(b"proc", b"/tmp/proc", b"proc", 0, None) == 0
""",
    "unmounts": 'return libc.umount2(b"/tmp", 2) == 0',
    "makes a user namespace": """
return any(libc.unshare(flag) == 0 for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000))
""",
    "clones into a user namespace": "return libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0) > 0",
    "changes its root": 'return tried(os.chroot, "/tmp")',
    "becomes root": """
before = os.getuid()
for change in (os.setuid, os.seteuid):
    tried(change, 0)
return tried(os.chown, "/tmp", 1, 1) or before != 0 and os.getuid() == 0
""",
    "connects by TCP": """
try: socket.create_connection(("127.0.0.1", 22), timeout=1)
except ConnectionRefusedError: return True
except OSError: return False
return True
""",
    "opens a Unix socket": 'return tried(lambda: socket.socket(socket.AF_UNIX).bind("\\0abstract"))',
    "signals everything": """
try: os.kill(-1, 9)
except ProcessLookupError: return False
return True
""",
    "signals a process by number": "return any([tried(os.kill, pid, 9) for pid in range(2, 5000)])",
    "traces": "return any(libc.ptrace(request, pid, 0, 0) == 0 for request in (0, 16) for pid in (0, 1, 2))",
    "writes where Python is": """
places = [os.path.dirname(os.__file__), sys.prefix, "/usr/lib", "/", "/dev", "/bin", "/etc"]
return any(tried(open, os.path.join(place, "rlsweep_was_here.py"), "w") for place in places)
""",
    "plants a compiled module": """
import py_compile
open("/tmp/json.py", "w").write("x = 1")
planted = os.path.join(os.path.dirname(os.__file__), "__pycache__", "json.pyc")
return tried(py_compile.compile, "/tmp/json.py", planted)
""",
    "links out of its folder": """
os.symlink("/../../../../root", "/tmp/way")
os.symlink(SECRET_FILE, "/tmp/file")
return any(map(read, ("/tmp/file", "/tmp/way/.bashrc", "/../../../etc/passwd", "/tmp/../../etc/shadow")))
""",
    "opens devices": """
paths = ("/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda", "/dev/tty", "/dev/shm/x", "/dev/nvidia0")
made = tried(os.mknod, "/tmp/disk", 0o60666, os.makedev(254, 0)) and tried(os.open, "/tmp/disk", os.O_RDONLY)
return made or any(tried(os.open, path, os.O_RDWR | os.O_CREAT) for path in paths)
""",
    "raises its limits": """
kinds = (resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE)
return any(tried(resource.setrlimit, kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)) for kind in kinds)
""",
    "keeps System V memory": "return libc.shmget(4711, 1 << 20, 0o1666) >= 0",
    "keeps a file in memory": 'return tried(os.memfd_create, "x")',
    "leaves a file for the next program": """
before = os.path.exists("/tmp/left")
open("/tmp/left", "w").write("x")
return before
""",
    "imports torch or the project": """
return any(tried(__import__, name) for name in ("torch", "numpy", "trainer_ext", "launcher", "yaml"))
""",
    "finds the tests in memory": """
texts = [repr(one) for one in gc.get_objects() if type(one) in (dict, list, tuple)]
frame = sys._getframe()
while frame:
    texts += [repr(value) for value in frame.f_locals.values()]
    frame = frame.f_back
return any(re.search("9173(?=8264)", text) for text in texts)
""",
    "finds the tests in raw memory": """
objects = gc.get_objects()
objects += gc.get_referents(*objects)
pools = {id(one) & ~0x3FFF for one in objects}
return len(pools) < 10 or any(re.search(b"9173(?=8264)", ctypes.string_at(pool, 0x4000)) for pool in pools)
""",
    "signals its group": "tried(os.killpg, 0, 9)\nreturn False",
    "reads the standard input": "return bool(os.read(0, 100000)) or bool(sys.stdin and sys.stdin.read())",
    "reads all descriptors": """
for one in range(64):
    try: ready = select.select([one], [], [], 0)[0]
    except (OSError, ValueError): continue
    if ready and one > 2:
        try: return b"assert" in os.read(one, 100000)
        except OSError: pass
return False
""",
}
ATTACKS = {name: f"{_HELP}def attack():\n{indent(body.strip(), '    ')}\n" for name, body in _BODIES.items()}

_SQUARE = """
import atexit, builtins, ctypes, gc, json, os, struct, sys
def square(x): return 0
def everywhere(data, first=0):
    for place in range(first, 64):
        try: os.write(place, data)
        except OSError: pass
"""

_FORGERIES = {
    "ends before the tests": "os._exit(0)",
    "ends in the function": "def square(x): os._exit(0)",
    "raises SystemExit": "def square(x): sys.exit(0)",
    "raises SystemExit at import": "sys.exit(0)",
    "prints a verdict": """
everywhere(b'PPE')
everywhere(b'{"events": "PPE", "timed_out": false, "again": true}')
""",
    "answers before it is asked": """
text = json.dumps(["tuple", "value", True]).encode()
everywhere((struct.pack("!I", len(text)) + text) * 100, 3)
""",
    "is equal to everything": """
class Equal:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
def square(x): return Equal()
""",
    "changes builtins": """
builtins.AssertionError = type("Quiet", (BaseException,), {})
builtins.isinstance = lambda *a: True
builtins.abs = lambda x: 0
builtins.exec = lambda *a: None
""",
    "changes the checker": """
for one in gc.get_objects():
    if type(one) is dict and "_case" in one: one["_case"] = lambda *a: b"P"
    if type(one) is dict and "check" in one: one["check"] = lambda *a: None
for module in list(sys.modules.values()):
    for name in ("same_output", "_called", "_case", "report"):
        if hasattr(module, name): setattr(module, name, lambda *a: b"P")
""",
    "changes the frames of its caller": """
def square(x):
    frame = sys._getframe()
    while frame:
        frame.f_globals["PASSED"] = frame.f_globals["FAILED"] = b"P"
        frame = frame.f_back
    return 0
""",
    "traces every call": "sys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)",
    "acts at its end": "atexit.register(everywhere, b'PPE')",
    "sends a pickle": """
class Bomb:
    def __reduce__(self): return os.system, ("true",)
def square(x): return Bomb()
""",
    "closes every descriptor": "os.closerange(0, 64)",
    "raises what ends no test": "def square(x): raise KeyboardInterrupt",
    "raises AssertionError": "def square(x): raise AssertionError",
    "returns the question": "def square(x): return x",
    "returns a generator": "def square(x): yield x * x",
    "returns not a number": "def square(x): return float('nan')",
    "recurses": "sys.setrecursionlimit(10**9)\ndef square(x): return square([x] * 1000)",
    "returns endless depth": """
def square(x):
    a = []
    for _ in range(10**5): a = [a]
    return a
""",
    "returns itself": "def square(x):\n    a = []\n    a.append(a)\n    return a",
    "returns a very long text": "def square(x): return 'x' * (1 << 27)",
    "crashes the interpreter": "def square(x): ctypes.string_at(0)",
    "takes the names of the tests": """
def check(*a): return True
def candidate(*a): return 9
def range(*a): return ()
""",
}
FORGERIES = {
    **{name: _SQUARE + source for name, source in _FORGERIES.items()},
    "breaks the parser": "(" * 100000,
    "has null characters": "def square(x):\n    return 0\n\0",
    "is empty": "",
}

_FLOODS = {
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
""",
    "many files": """
number = 0
try:
    while True:
        number += 1
        open(f"/tmp/{number}", "w").close()
except OSError: pass
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
""",
    "arithmetic without end": "def square(x):\n    return 9 ** 9 ** 9",
    "endless output to the tests": """
import os
data = b"\\x00\\x00\\x00\\x01x" * 10000
for one in range(3, 64):
    try:
        while True: os.write(one, data)
    except OSError: pass
""",
}
FLOODS = {name: _SQUARE + source for name, source in _FLOODS.items()}
