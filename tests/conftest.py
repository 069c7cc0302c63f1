"""The harshest settings: annotations checked at run time, strict promotion, warnings are errors."""

import contextlib
import ctypes
import gc
import hashlib
import os
import tempfile
from pathlib import Path

import jax
import jax.random as jr
import jaxlib
import jaxtyping
import pytest
from jax._src import lru_cache, pjit
from jax._src.interpreters import pxla
from jaxtyping import install_import_hook

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# What only a profiler reads takes a tenth of the time.
jax.config.update("jax_traceback_in_locations_limit", 0)

if not jax.config.jax_enable_x64:  # annotations are the same in either precision
    install_import_hook("jaxbo", "beartype.beartype").__enter__()

#: XLA's flags. Without LLVM's optimizations compiling takes two thirds of the time, and without the
#: newer emitters, where they can still be done without, one third, and a little less if a program is
#: not divided among threads. But `run` and `drive` then agree in every bit no longer: without emitters or
#: division nowhere, without optimizations from jaxlib 0.12 on.
BEFORE_0_12 = jaxlib.version.__version_info__ < (0, 12)
FAST, FASTER = "--xla_backend_optimization_level=0", "--xla_cpu_use_fusion_emitters=false"
UNDIVIDED = "--xla_cpu_parallel_codegen_split_count=1"
#: A search of an empty past is made of constants, and folding them takes up to two thirds of the time.
UNFOLDED = "--xla_disable_hlo_passes=constant_folding"
COMPILE = {
    "users": [],
    "bitwise": [FAST] if BEFORE_0_12 else [],
    "roughly": [FAST, UNDIVIDED, UNFOLDED, *([FASTER] if BEFORE_0_12 else [])],
}
#: What `test_layout` lays agents over; everything else is on the first of them.
DEVICES = "--xla_force_host_platform_device_count=8"
#: Bytes of compiled programs that are kept for the next run.
MOST_KEPT = 1e9


def put_whole(self, key, value):
    """Writes a compiled program such that another worker reads all of it or nothing.

    JAX itself takes care of that only if it also limits the folder, which it then reads each time.
    """
    with tempfile.NamedTemporaryFile(dir=self.path, delete=False) as file:
        file.write(value)
    os.replace(file.name, Path(self.path) / f"{key}-cache")


def forget_oldest(folder):
    """Deletes the oldest of the programs that earlier runs compiled, where there are too many."""
    kept = 0
    for path in sorted(folder.glob("*"), key=lambda path: -path.stat().st_mtime):
        kept += path.stat().st_size
        if kept > MOST_KEPT:
            path.unlink()


def pytest_addoption(parser):
    parser.addoption("--compile", choices=COMPILE, default="users", help="as users do, or faster")
    text = "a method of one's own to hold to the contract, MODULE:NAME (CONTRIBUTING.md)"
    parser.addoption("--method", help=text)


def pytest_configure(config):
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)  # tracing makes many objects: a tenth of the time
    flags = [DEVICES, *COMPILE[config.getoption("compile")]]
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *flags])
    os.environ.pop("JAXBO_METHOD", None)
    # The cache is for this process and for workers. Processes that tests start compile for themselves.
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
        lru_cache.LRUCache.put = put_whole
    elif "JAX_COMPILATION_CACHE_DIR" in os.environ:
        forget_oldest(Path(os.environ["JAX_COMPILATION_CACHE_DIR"]))
    if config.getoption("method"):  # others need not be as strict
        jax.config.update("jax_numpy_dtype_promotion", "standard")
        jax.config.update("jax_numpy_rank_promotion", "allow")
        os.environ["JAXBO_METHOD"] = config.getoption("method")


#: Most of what a compiled program holds is the text that it was compiled from. JAX keeps the text, and
#: needs it again for `lower` and for programs with effects alone. Nothing public forgets the text alone.
TEXTS = [
    cache
    for module, name in ((pjit, "_pjit_lower"), (pxla, "_cached_lowering_to_hlo"))
    if hasattr(cache := getattr(module, name, None), "cache_clear")
]
#: Less than half of what Linux grants a process by default. Every compiled program takes some, and one
#: that gets none crashes.
MOST_MAPPINGS = 30_000
#: Bytes from which on a process gives memory back, and again with so many more: they are to run on a
#: laptop. Giving back takes a tenth of a second. A driver compiles a program again if its text was
#: forgotten. If programs are forgotten, all that later tests share is compiled again.
SOME_BYTES, MOST_BYTES, MORE_BYTES = 1.2e9, 1.5e9, 1e8
PROCESS = Path("/proc/self")
#: The bytes that the last trim left, and those that were left when programs were forgotten.
KEPT, FORGOTTEN = pytest.StashKey[float](), pytest.StashKey[float]()


def resident():
    """Bytes that this process holds; 0 where that is not said."""
    sizes = PROCESS / "statm"
    return int(sizes.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if sizes.exists() else 0


def trimmed():
    """Memory that compiling leaves behind goes back to the system. Returns the bytes that are left."""
    with contextlib.suppress(OSError, AttributeError):  # of the C library of Linux only
        ctypes.CDLL(None).malloc_trim(0)
    return resident()


def without_texts():
    """Forgets the texts of programs, too: more than half of a process. Returns what is left."""
    for cache in TEXTS:
        cache.cache_clear()
    return trimmed()


def pytest_runtest_teardown(item):
    stash = item.config.stash
    if resident() > max(SOME_BYTES, stash.setdefault(KEPT, 0) + MORE_BYTES):
        left = trimmed()
        stash[KEPT] = left if left < MOST_BYTES else without_texts()


@pytest.fixture(autouse=True, scope="module")
def few_programs(request):
    """Forget compiled programs before the process holds more than it may."""
    yield
    stash, mappings = request.config.stash, PROCESS / "maps"
    many = mappings.exists() and mappings.read_text().count("\n") > MOST_MAPPINGS
    # What stays without any program is no reason to forget the few of the last file.
    most = max(SOME_BYTES, stash.setdefault(FORGOTTEN, 0) + MORE_BYTES)
    if many or (resident() > most and without_texts() > most):
        jax.clear_caches()
        gc.collect()
        stash[KEPT] = stash[FORGOTTEN] = trimmed()


@pytest.fixture
def key(request):
    """A random key of the test's own, derived from its name; printed, so pytest shows it on failure."""
    seed = int(hashlib.sha256(request.node.name.encode()).hexdigest()[:8], 16)
    print(f"seed {seed}")
    return jr.key(seed)


@pytest.fixture
def path(tmp_path):
    """Where a run's checkpoint goes, in a folder of the test's own."""
    return tmp_path / "run.npz"


@pytest.fixture
def x64():
    """Whether the suite runs in float64."""
    return jax.config.jax_enable_x64


@pytest.fixture
def as_users_have_it():
    """Annotations are not checked outside of this suite: these errors are the package's own."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def full():
    """A full disk: within it no file of this process can become larger than that many bytes."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    @contextlib.contextmanager
    def full(room):
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return full
