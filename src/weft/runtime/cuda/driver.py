"""The functions of NVIDIA's driver that Weft needs, through ``ctypes``; what they report is raised by name."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

from weft.errors import EvaluationError
from weft.runtime.atomic import Action, first_failure

LIBRARY = "libcuda.so.1"

_Pointer = ctypes.c_void_p
_Address = ctypes.c_uint64
"""Of memory on a card."""
_Size = ctypes.c_size_t
_Int, _Unsigned = ctypes.c_int, ctypes.c_uint

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_Unsigned,),
    "cuDriverGetVersion": (_Pointer,),
    "cuGetErrorName": (_Int, _Pointer),
    "cuGetErrorString": (_Int, _Pointer),
    "cuDeviceGetCount": (_Pointer,),
    "cuDeviceGet": (_Pointer, _Int),
    "cuDeviceGetName": (_Pointer, _Int, _Int),
    "cuDeviceGetAttribute": (_Pointer, _Int, _Int),
    "cuDeviceTotalMem_v2": (_Pointer, _Int),
    "cuDevicePrimaryCtxRetain": (_Pointer, _Int),
    "cuCtxSetCurrent": (_Pointer,),
    "cuMemAlloc_v2": (_Pointer, _Size),
    "cuMemFree_v2": (_Address,),
    "cuMemGetInfo_v2": (_Pointer, _Pointer),
    "cuPointerGetAttribute": (_Pointer, _Int, _Address),
    "cuMemHostAlloc": (_Pointer, _Size, _Unsigned),
    "cuMemcpyHtoDAsync_v2": (_Address, _Pointer, _Size, _Pointer),
    "cuMemcpyDtoHAsync_v2": (_Pointer, _Address, _Size, _Pointer),
    "cuMemcpyDtoDAsync_v2": (_Address, _Address, _Size, _Pointer),
    "cuMemcpyPeerAsync": (_Address, _Pointer, _Address, _Pointer, _Size, _Pointer),
    "cuStreamCreate": (_Pointer, _Unsigned),
    "cuEventCreate": (_Pointer, _Unsigned),
    "cuEventRecord": (_Pointer, _Pointer),
    "cuStreamWaitEvent": (_Pointer, _Pointer, _Unsigned),
    "cuStreamQuery": (_Pointer,),
    "cuStreamSynchronize": (_Pointer,),
    "cuEventQuery": (_Pointer,),
    "cuCtxSynchronize": (),
    "cuEventElapsedTime": (_Pointer, _Pointer, _Pointer),
    "cuLinkCreate_v2": (_Unsigned, _Pointer, _Pointer, _Pointer),
    "cuLinkAddData_v2": (_Pointer, _Int, _Pointer, _Size, ctypes.c_char_p, _Unsigned, _Pointer, _Pointer),
    "cuLinkComplete": (_Pointer, _Pointer, _Pointer),
    "cuLinkDestroy": (_Pointer,),
    "cuModuleLoadDataEx": (_Pointer, _Pointer, _Unsigned, _Pointer, _Pointer),
    "cuModuleGetFunction": (_Pointer, _Pointer, ctypes.c_char_p),
    "cuFuncSetAttribute": (_Pointer, _Int, _Int),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (_Pointer, _Pointer, _Int, _Size),
    "cuLaunchKernel": (_Pointer, *[_Unsigned] * 7, _Pointer, _Pointer, _Pointer),
    "cuGraphCreate": (_Pointer, _Unsigned),
    "cuGraphAddKernelNode_v2": (_Pointer, _Pointer, _Pointer, _Size, _Pointer),
    "cuStreamBeginCapture_v2": (_Pointer, _Int),
    "cuStreamEndCapture": (_Pointer, _Pointer),
    "cuGraphInstantiateWithFlags": (_Pointer, _Pointer, ctypes.c_ulonglong),
    "cuGraphLaunch": (_Pointer, _Pointer),
    "cuGraphDestroy": (_Pointer,),
    "cuGraphExecDestroy": (_Pointer,),
}

_NEWER: dict[str, tuple[Any, ...]] = {
    "cuCtxRecordEvent": (_Pointer, _Pointer),
    "cuGraphAddDependencies_v2": (_Pointer, _Pointer, _Pointer, _Pointer, _Size),
    "cuLaunchKernelEx": (_Pointer, _Pointer, _Pointer, _Pointer),
}
"""Since CUDA 12.5, 12.3 and 11.8."""

OUT_OF_MEMORY = 2
NOT_READY = 600
_READY_OR_NOT = (NOT_READY, 0)
_CAPTURING = range(900, 910)
_CAPTURE_PATIENCE = 1000
"""So many milliseconds are waited for a graph of another thread."""
_NON_BLOCKING = 1
_RELAXED = 2
"""Other work of the process goes on as usual while a stream captures."""
_MAY_BEGIN_EARLY = 6
"""Of launches: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""
_WHEN_IT_SAYS = 1
"""Of edges in a graph: a kernel may begin when the one before says so, and waits by itself for its end."""
_LOG_SIZE = 1 << 14
_ERROR_LOG, _ERROR_LOG_SIZE = 5, 6
_PTX = 1
_DYNAMIC_SHARED = 8
_CARD_OF_POINTER = 9
_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76


class CudaError(EvaluationError):
    """The driver reported an error; ``name`` is the driver's own, such as ``CUDA_ERROR_ILLEGAL_ADDRESS``."""

    def __init__(self, name: str, text: str, called: str, more: str = "") -> None:
        super().__init__(f"{name}: {text} (reported by {called}){more}")
        self.name, self.text, self.called = name, text, called

    def after(self, kernels: Sequence[str]) -> CudaError:
        """The same error, with kernels one of which may have caused it: the card says so when somebody waits."""
        shown = "".join([f"\n  {title}" for title in kernels])
        return self.with_more(f". Kernels that were queued last:{shown}" if shown else "")

    def with_more(self, more: str) -> CudaError:
        """The same error, of which more is said."""
        return type(self)(self.name, self.text, self.called, more)


class CudaMemoryError(CudaError, MemoryError):
    """A card has no memory for what the driver or a library of NVIDIA's needs besides arrays, such as a context."""


class _KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h."""

    _fields_ = (
        ("function", _Pointer),
        ("blocks", _Unsigned * 3),
        ("threads", _Unsigned * 3),
        ("shared", _Unsigned),
        ("parameters", _Pointer),
        ("extra", _Pointer),
        ("kernel", _Pointer),
        ("context", _Pointer),
    )


class _Edge(ctypes.Structure):
    """CUgraphEdgeData of cuda.h."""

    _fields_ = (
        ("from_port", ctypes.c_ubyte),
        ("to_port", ctypes.c_ubyte),
        ("type", ctypes.c_ubyte),
        ("reserved", ctypes.c_ubyte * 5),
    )


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute of cuda.h, with a value that is an integer."""

    _fields_ = (("id", _Int), ("padding", _Int), ("value", _Int), ("rest", ctypes.c_char * 60))


class _LaunchConfiguration(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = (
        ("blocks", _Unsigned * 3),
        ("threads", _Unsigned * 3),
        ("shared", _Unsigned),
        ("stream", _Pointer),
        ("attributes", _Pointer),
        ("count", _Unsigned),
    )


class _Log:
    """What the driver says of code that it cannot take. The ``options`` are the number of options, they, and their
    values; the linker writes to it until it is destroyed."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(_LOG_SIZE)
        values = (_Pointer * 2)(ctypes.addressof(self._buffer), _LOG_SIZE)
        self.options = 2, (_Int * 2)(_ERROR_LOG, _ERROR_LOG_SIZE), values

    def text(self, name: str) -> str:
        """What it says, for errors; nothing if there is nothing."""
        found = self._buffer.value.decode(errors="replace")
        return f" for {name}:\n{found}" if found else ""


class FunctionLaunch:
    """A launch of a function with two addresses of the card as its parameters. One that ``waits`` by itself for what is
    before it may begin earlier."""

    def __init__(
        self, function: int, blocks: int, threads: int, shared: int, numbers: int, slots: int, waits: bool = False
    ) -> None:
        self._values = (_Address * 2)(numbers, slots)
        first = ctypes.addressof(self._values)
        self._parameters = (_Pointer * 2)(first, first + 8)
        self.parameters = ctypes.addressof(self._parameters)
        self.function, self.blocks, self.threads, self.shared = function, blocks, threads, shared
        self.numbers, self.slots, self.waits = numbers, slots, waits

    def arguments(self, stream: int) -> tuple[Any, ...]:
        """Those of ``cuLaunchKernel``."""
        return self.function, self.blocks, 1, 1, self.threads, 1, 1, self.shared, stream, self.parameters, None


class Driver:
    """NVIDIA's driver in this process.

    Raises:
        OSError: there is none.
        CudaError: it finds no card that it can use.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(LIBRARY)
        self._functions: dict[str, Callable[..., int]] = {}
        for name, arguments in (_SIGNATURES | _NEWER).items():
            if name in _SIGNATURES or hasattr(library, name):
                function = getattr(library, name)
                function.argtypes, function.restype = arguments, _Int
                self._functions[name] = function
        self._query_stream, self._query_event = self._functions["cuStreamQuery"], self._functions["cuEventQuery"]
        self._copy_out = self._functions["cuMemcpyDtoHAsync_v2"]
        self._call("cuInit", 0)

    def _call(self, name: str, *arguments: Any) -> None:
        self.check(self._functions[name](*arguments), name)

    def check(self, code: int, called: str, more: str = "") -> None:
        """Raise what the driver reports by a code other than 0."""
        if code:
            kind = CudaMemoryError if code == OUT_OF_MEMORY else CudaError
            raise kind(*self._described(code), called, more)

    def _described(self, code: int) -> tuple[str, str]:
        found = []
        for function in ("cuGetErrorName", "cuGetErrorString"):
            text = ctypes.c_char_p()
            self._functions[function](code, ctypes.byref(text))
            found.append(text.value.decode() if text.value else f"error {code}")
        return found[0], found[1]

    def _given(self, name: str, kind: Any, *arguments: Any) -> Any:
        """What a function writes to where its first argument points."""
        result = kind()
        self._call(name, ctypes.byref(result), *arguments)
        return result.value

    def _given_last(self, name: str, *arguments: Any) -> int:
        """The handle that a function writes to where its last argument points."""
        result = _Pointer()
        self._call(name, *arguments, ctypes.byref(result))
        assert result.value is not None
        return result.value

    def version(self) -> int:
        """1000 times the major version, and 10 times the minor one."""
        return self._given("cuDriverGetVersion", _Int)

    def count(self) -> int:
        return self._given("cuDeviceGetCount", _Int)

    def name_of(self, card: int) -> str:
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, len(text), card)
        return text.value.decode()

    def total_memory(self, card: int) -> int:
        return self._given("cuDeviceTotalMem_v2", _Size, card)

    def multiprocessors(self, card: int) -> int:
        return self._given("cuDeviceGetAttribute", _Int, _MULTIPROCESSORS, card)

    def capability(self, card: int) -> tuple[int, int]:
        """The compute capability: (9, 0), for example."""
        major, minor = (self._given("cuDeviceGetAttribute", _Int, which, card) for which in (_MAJOR, _MINOR))
        return major, minor

    def context(self, card: int) -> int:
        """The context of a card that all libraries of a process share."""
        return self._given("cuDevicePrimaryCtxRetain", _Pointer, card)

    def use(self, context: int) -> None:
        """Make a context that of the calling thread."""
        self._call("cuCtxSetCurrent", context)

    def allocate(self, size: int) -> int:
        """The address of new memory; 0 if there is not so much."""
        if size >= 1 << 63:
            return 0
        address = _Address()
        code = self._functions["cuMemAlloc_v2"](ctypes.byref(address), size)
        if code == OUT_OF_MEMORY:
            return 0
        self.check(code, "cuMemAlloc")
        return address.value

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", address)

    def free_memory(self) -> int:
        """The bytes of the current context's card that nobody has, in this process or another one."""
        total = _Size()
        return self._given("cuMemGetInfo_v2", _Size, ctypes.byref(total))

    def card_of(self, address: int) -> int:
        """The card on which memory is."""
        return self._given("cuPointerGetAttribute", _Int, _CARD_OF_POINTER, address)

    def pinned(self, size: int) -> int:
        """The address of memory of the host that cards can copy from and to by themselves. It is never freed."""
        return self._given("cuMemHostAlloc", _Pointer, size, 0)

    def copy_in(self, target: int, source: int, size: int, stream: int) -> None:
        """Queue a copy to the card. Unless ``source`` is pinned, it may be overwritten as soon as this returns."""
        self._call("cuMemcpyHtoDAsync_v2", target, source, size, stream)

    def copy_out(self, target: int, source: int, size: int, stream: int) -> None:
        """Queue a copy to the host, behind what was queued. If ``target`` is not pinned, this waits for it."""
        code = self._copy_out(target, source, size, stream)
        if code:
            self.check(code, "cuMemcpyDtoHAsync_v2")

    def copy_peer(self, target: int, to: int, source: int, of: int, size: int, stream: int) -> None:
        """Queue a copy between two contexts."""
        self._call("cuMemcpyPeerAsync", target, to, source, of, size, stream)

    # What queues work as one call of native code, which gives the driver's code

    def copying_in(self, target: int, source: int, size: int, stream: int) -> Action:
        """A copy to the card, as `copy_in`."""
        return self._functions["cuMemcpyHtoDAsync_v2"], target, source, size, stream

    def copying(self, target: int, source: int, size: int, stream: int) -> Action:
        """A copy within the memory of a card."""
        return self._functions["cuMemcpyDtoDAsync_v2"], target, source, size, stream

    def waiting(self, stream: int) -> Action:
        """Wait for what was queued on a stream, which cannot be captured."""
        return self._functions["cuStreamSynchronize"], stream

    def launching(self, launch: FunctionLaunch, stream: int) -> Action:
        """One launch."""
        return self._functions["cuLaunchKernel"], *launch.arguments(stream)

    def launching_early(self, launch: FunctionLaunch, stream: int) -> Action:
        """One launch behind another one, which it waits for by itself."""
        if not (launch.waits and self._functions.keys() >= _NEWER.keys()):
            return self.launching(launch, stream)
        attribute = _Attribute(_MAY_BEGIN_EARLY, 0, 1)
        one = (_Unsigned * 3)(launch.blocks, 1, 1), (_Unsigned * 3)(launch.threads, 1, 1)
        configuration = _LaunchConfiguration(*one, launch.shared, stream, ctypes.addressof(attribute), 1)
        configuration.kept = attribute
        return (
            self._functions["cuLaunchKernelEx"],
            ctypes.byref(configuration),
            launch.function,
            launch.parameters,
            None,
        )

    def launching_graph(self, graph: int, stream: int) -> Action:
        """All launches of a graph."""
        return self._functions["cuGraphLaunch"], graph, stream

    def recording(self, event: int, stream: int) -> Action:
        """An event, behind what was queued on a stream."""
        return self._functions["cuEventRecord"], event, stream

    def stream(self) -> int:
        """A new stream that does not wait for the default one."""
        return self._given("cuStreamCreate", _Pointer, _NON_BLOCKING)

    def is_done(self, stream: int) -> bool:
        """Whether all that was queued is done; raises what failed."""
        code = self._query_stream(stream)  # asked again and again by who waits
        if code not in _READY_OR_NOT:
            self.check(code, "cuStreamQuery")
        return code == 0

    def has_happened(self, event: int) -> bool:
        """Whether an event has happened; raises what failed."""
        code = self._query_event(event)
        if code not in _READY_OR_NOT:
            self.check(code, "cuEventQuery")
        return code == 0

    def record_all(self, context: int, event: int) -> None:
        """An event behind all that was queued on any stream of a context, which older drivers wait for."""
        record = self._functions.get("cuCtxRecordEvent")
        if record is None:
            self._call("cuCtxSynchronize")
            return
        for _ in range(_CAPTURE_PATIENCE):
            code = record(context, event)
            if code not in _CAPTURING:
                break
            time.sleep(1e-3)  # another thread captures a graph, of which no event can be part
        self.check(code, "cuCtxRecordEvent")

    def event(self) -> int:
        return self._given("cuEventCreate", _Pointer, 0)

    def record(self, event: int, stream: int) -> None:
        self._call("cuEventRecord", event, stream)

    def wait_event(self, stream: int, event: int) -> None:
        """Have what is queued from now on wait for an event."""
        self._call("cuStreamWaitEvent", stream, event, 0)

    def elapsed(self, first: int, second: int) -> int:
        """Nanoseconds between two events that have happened."""
        return round(self._given("cuEventElapsedTime", ctypes.c_float, first, second) * 1e6)

    def assembled(self, ptx: bytes, name: str) -> bytes:
        """The machine code of PTX, which ends with a zero byte, for the card of the current context."""
        log = _Log()
        number, options, values = log.options
        linker = self._given_last("cuLinkCreate_v2", number, options, values)
        try:
            failed = self._functions["cuLinkAddData_v2"](linker, _PTX, ptx, len(ptx), name.encode(), 0, None, None)
            self.check(failed, "cuLinkAddData", log.text(name))
            code, size = _Pointer(), _Size()
            self._call("cuLinkComplete", linker, ctypes.byref(code), ctypes.byref(size))
            return ctypes.string_at(code, size.value)
        finally:
            self._call("cuLinkDestroy", linker)

    def load(self, code: bytes, name: str, shared: int) -> tuple[int, int]:
        """The module and the function ``name`` of PTX or machine code; PTX ends with a zero byte."""
        log = _Log()
        module = _Pointer()
        self.check(
            self._functions["cuModuleLoadDataEx"](ctypes.byref(module), code, *log.options),
            "cuModuleLoadDataEx",
            log.text(name),
        )
        function = self._given("cuModuleGetFunction", _Pointer, module, name.encode())
        if shared:
            self._call("cuFuncSetAttribute", function, _DYNAMIC_SHARED, shared)
        assert module.value is not None
        return module.value, function

    def resident_blocks(self, function: int, threads: int, shared: int) -> int:
        """How many blocks of a function a multiprocessor holds at once."""
        return self._given("cuOccupancyMaxActiveBlocksPerMultiprocessor", _Int, function, threads, shared)

    def graph(self, launches: Sequence[FunctionLaunch]) -> int:
        """A graph that can be launched: launches one after the other."""
        graph = self._given("cuGraphCreate", _Pointer, 0)
        before: tuple[int, ...] = ()
        for launch in launches:
            one = (_Unsigned * 3)(launch.blocks, 1, 1), (_Unsigned * 3)(launch.threads, 1, 1)
            node = _KernelNode(launch.function, *one, launch.shared, launch.parameters, None, None, None)
            early = before if launch.waits and self._functions.keys() >= _NEWER.keys() else ()
            needed = () if early else before
            dependencies = (_Pointer * max(len(needed), 1))(*needed)
            added = "cuGraphAddKernelNode_v2", _Pointer, graph, dependencies, len(needed), ctypes.byref(node)
            now = self._given(*added)
            if early:
                edge = _Edge(_WHEN_IT_SAYS, 0, _WHEN_IT_SAYS)
                ends = (_Pointer * 1)(*early), (_Pointer * 1)(now)
                self._call("cuGraphAddDependencies_v2", graph, *ends, ctypes.byref(edge), 1)
            before = (now,)
        return self._ready(graph)

    def _ready(self, graph: int) -> int:
        """A graph in the form in which it can be launched."""
        ready = self._given("cuGraphInstantiateWithFlags", _Pointer, graph, 0)
        self._call("cuGraphDestroy", graph)
        return ready

    def captured(self, actions: Sequence[Action], stream: int) -> int:
        """A graph that can be launched, of what actions queue on a stream that is used for nothing else; 0 if they
        cannot be captured. Then the stream cannot be used any more."""
        graph = _Pointer()
        begin = self._functions["cuStreamBeginCapture_v2"], stream, _RELAXED
        end = self._functions["cuStreamEndCapture"], stream, ctypes.byref(graph)
        failed = first_failure([begin, *actions, end])
        return self._ready(graph.value) if failed is None and graph.value else 0

    def destroy_graph(self, graph: int) -> None:
        self._call("cuGraphExecDestroy", graph)
