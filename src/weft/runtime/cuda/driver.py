"""The functions of NVIDIA's driver that Weft needs, through ``ctypes``; errors have the driver's names."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

from weft.errors import EvaluationError
from weft.runtime.atomic import Action, first_failure
from weft.runtime.cuda.cards import LIBRARY

_Pointer = ctypes.c_void_p
_Address = ctypes.c_uint64
"""The type of addresses of memory on a card."""
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
"""Functions that drivers have since CUDA 12.5, 12.3 and 11.8."""

OUT_OF_MEMORY = 2
NOT_READY = 600
_READY_OR_NOT = (NOT_READY, 0)
_CAPTURING = range(900, 910)
_CAPTURE_PATIENCE = 1000
"""How many milliseconds to wait for another thread's graph."""
_NON_BLOCKING = 1
_RELAXED = 2
"""The capture mode in which other calls of the process work as usual."""
_MAY_BEGIN_EARLY = 6
"""The attribute of a launch CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""
_WHEN_IT_SAYS = 1
"""The type and port of an edge in a graph: a kernel may begin when the kernel before it allows that, and waits for its
end in its own code."""
_LOG_SIZE = 1 << 14
_ERROR_LOG, _ERROR_LOG_SIZE = 5, 6
_PTX = 1
_DYNAMIC_SHARED = 8
_CARD_OF_POINTER = 9
_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76


class CudaError(EvaluationError):
    """The driver reported an error; ``name`` is the driver's name for it, such as ``CUDA_ERROR_ILLEGAL_ADDRESS``."""

    def __init__(self, name: str, text: str, called: str, more: str = "") -> None:
        super().__init__(f"{name}: {text} (reported by {called}){more}")
        self.name, self.text, self.called = name, text, called

    def after(self, kernels: Sequence[str]) -> CudaError:
        """The same error, naming the kernels one of which may have caused it: a card reports errors only to a later
        call."""
        shown = "".join([f"\n  {title}" for title in kernels])
        return self.with_more(f". Kernels that were queued last:{shown}" if shown else "")

    def with_more(self, more: str) -> CudaError:
        """The same error with ``more`` in its message."""
        return type(self)(self.name, self.text, self.called, more)


class CudaMemoryError(CudaError, MemoryError):
    """A card has too little memory for what the driver or a library of NVIDIA needs besides arrays, such as a
    context."""


class _KernelNode(ctypes.Structure):
    """The structure CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h."""

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
    """The structure CUgraphEdgeData of cuda.h."""

    _fields_ = (
        ("from_port", ctypes.c_ubyte),
        ("to_port", ctypes.c_ubyte),
        ("type", ctypes.c_ubyte),
        ("reserved", ctypes.c_ubyte * 5),
    )


class _Attribute(ctypes.Structure):
    """The structure CUlaunchAttribute of cuda.h, with an integer as its value."""

    _fields_ = (("id", _Int), ("padding", _Int), ("value", _Int), ("rest", ctypes.c_char * 60))


class _LaunchConfiguration(ctypes.Structure):
    """The structure CUlaunchConfig of cuda.h."""

    _fields_ = (
        ("blocks", _Unsigned * 3),
        ("threads", _Unsigned * 3),
        ("shared", _Unsigned),
        ("stream", _Pointer),
        ("attributes", _Pointer),
        ("count", _Unsigned),
    )


class _Log:
    """The messages of the driver about code that it rejects. ``options`` are the count of options, the options, and
    their values; the linker writes to the buffer until it is destroyed."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(_LOG_SIZE)
        values = (_Pointer * 2)(ctypes.addressof(self._buffer), _LOG_SIZE)
        self.options = 2, (_Int * 2)(_ERROR_LOG, _ERROR_LOG_SIZE), values

    def text(self, name: str) -> str:
        """The messages for an error text; "" if there are none."""
        found = self._buffer.value.decode(errors="replace")
        return f" for {name}:\n{found}" if found else ""


class FunctionLaunch:
    """A launch of a function whose parameters are numbers, or their address on the card, and the address of slots. A
    function that ``waits`` in its own code for earlier kernels may be started before they end."""

    def __init__(
        self,
        function: int,
        blocks: int,
        threads: int,
        shared: int,
        numbers: int | Sequence[int],
        slots: int,
        waits: bool = False,
    ) -> None:
        first = [numbers] if isinstance(numbers, int) else list(numbers)
        self._values = (ctypes.c_int64 * (1 + len(first)))(slots, *first)
        start = ctypes.addressof(self._values)
        self._parameters = (_Pointer * 2)(start + 8, start)
        self.parameters = ctypes.addressof(self._parameters)
        self.function, self.blocks, self.threads, self.shared = function, blocks, threads, shared
        self.numbers, self.slots, self.waits = numbers, slots, waits

    def arguments(self, stream: int) -> tuple[Any, ...]:
        """The arguments of ``cuLaunchKernel``."""
        return self.function, self.blocks, 1, 1, self.threads, 1, 1, self.shared, stream, self.parameters, None


class Driver:
    """NVIDIA's driver in this process.

    Raises:
        OSError: there is no driver.
        CudaError: the driver finds no card that it can use.
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
        """Raise the error of a code other than 0."""
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
        """Call a function whose first argument points to its result, and return the result."""
        result = kind()
        self._call(name, ctypes.byref(result), *arguments)
        return result.value

    def _given_last(self, name: str, *arguments: Any) -> int:
        """Call a function whose last argument points to its result, a handle, and return the handle."""
        result = _Pointer()
        self._call(name, *arguments, ctypes.byref(result))
        assert result.value is not None
        return result.value

    def version(self) -> int:
        """1000 times the major version plus 10 times the minor one."""
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
        """The primary context of a card, which all libraries of a process share."""
        return self._given("cuDevicePrimaryCtxRetain", _Pointer, card)

    def use(self, context: int) -> None:
        """Make a context the current one of the calling thread."""
        self._call("cuCtxSetCurrent", context)

    def allocate(self, size: int) -> int:
        """The address of new memory; 0 if there is not enough."""
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
        """The bytes of the current context's card that no process uses."""
        total = _Size()
        return self._given("cuMemGetInfo_v2", _Size, ctypes.byref(total))

    def card_of(self, address: int) -> int:
        """The card that an address belongs to."""
        return self._given("cuPointerGetAttribute", _Int, _CARD_OF_POINTER, address)

    def pinned(self, size: int) -> int:
        """The address of new pinned memory, which cards copy to and from without the processor. It is never freed."""
        return self._given("cuMemHostAlloc", _Pointer, size, 0)

    def copy_in(self, target: int, source: int, size: int, stream: int) -> None:
        """Queue a copy to the card. Unless ``source`` is pinned, it may be overwritten as soon as this returns."""
        self._call("cuMemcpyHtoDAsync_v2", target, source, size, stream)

    def copy_out(self, target: int, source: int, size: int, stream: int) -> None:
        """Queue a copy to the host, after the queued work. If ``target`` is not pinned, this waits for the copy."""
        code = self._copy_out(target, source, size, stream)
        if code:
            self.check(code, "cuMemcpyDtoHAsync_v2")

    def copy_peer(self, target: int, to: int, source: int, of: int, size: int, stream: int) -> None:
        """Queue a copy between two contexts."""
        self._call("cuMemcpyPeerAsync", target, to, source, of, size, stream)

    # Actions that queue work by one call of native code, which returns the driver's code

    def copying_in(self, target: int, source: int, size: int, stream: int) -> Action:
        """Copies to the card, as `copy_in` does."""
        return self._functions["cuMemcpyHtoDAsync_v2"], target, source, size, stream

    def copying(self, target: int, source: int, size: int, stream: int) -> Action:
        """Copies within the memory of a card."""
        return self._functions["cuMemcpyDtoDAsync_v2"], target, source, size, stream

    def waiting(self, stream: int) -> Action:
        """Waits for what was queued on a stream; this cannot be captured."""
        return self._functions["cuStreamSynchronize"], stream

    def launching(self, launch: FunctionLaunch, stream: int) -> Action:
        """Launches a kernel."""
        return self._functions["cuLaunchKernel"], *launch.arguments(stream)

    def launching_early(self, launch: FunctionLaunch, stream: int) -> Action:
        """Launches a kernel that may start before the one before it ends, and waits for it in its own code."""
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
        """Launches a graph."""
        return self._functions["cuGraphLaunch"], graph, stream

    def recording(self, event: int, stream: int) -> Action:
        """Records an event after the queued work of a stream."""
        return self._functions["cuEventRecord"], event, stream

    def stream(self) -> int:
        """A new stream that does not synchronise with the default one."""
        return self._given("cuStreamCreate", _Pointer, _NON_BLOCKING)

    def is_done(self, stream: int) -> bool:
        """Whether all queued work of a stream is done; raises its error."""
        code = self._query_stream(stream)  # called again and again while somebody waits
        if code not in _READY_OR_NOT:
            self.check(code, "cuStreamQuery")
        return code == 0

    def has_happened(self, event: int) -> bool:
        """Whether an event has happened; raises the error of the work before it."""
        code = self._query_event(event)
        if code not in _READY_OR_NOT:
            self.check(code, "cuEventQuery")
        return code == 0

    def record_all(self, context: int, event: int) -> None:
        """Record an event after the queued work of all streams of a context; with older drivers this waits for that
        work."""
        record = self._functions.get("cuCtxRecordEvent")
        if record is None:
            self._call("cuCtxSynchronize")
            return
        for _ in range(_CAPTURE_PATIENCE):
            code = record(context, event)
            if code not in _CAPTURING:
                break
            time.sleep(1e-3)  # another thread is capturing a graph, and no event can be recorded in a graph
        self.check(code, "cuCtxRecordEvent")

    def event(self) -> int:
        return self._given("cuEventCreate", _Pointer, 0)

    def record(self, event: int, stream: int) -> None:
        self._call("cuEventRecord", event, stream)

    def wait_event(self, stream: int, event: int) -> None:
        """Make the later work of a stream wait for an event."""
        self._call("cuStreamWaitEvent", stream, event, 0)

    def elapsed(self, first: int, second: int) -> int:
        """Nanoseconds between two events that have happened."""
        return round(self._given("cuEventElapsedTime", ctypes.c_float, first, second) * 1e6)

    def assembled(self, ptx: bytes, name: str) -> bytes:
        """The machine code for the current context's card of PTX, which must end with a zero byte."""
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
        """The module, and the function ``name`` in it, of machine code or of PTX, which must end with a zero byte."""
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
        """How many blocks of a function a multiprocessor can hold at once."""
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
        """An executable graph, made of a graph."""
        ready = self._given("cuGraphInstantiateWithFlags", _Pointer, graph, 0)
        self._call("cuGraphDestroy", graph)
        return ready

    def captured(self, actions: Sequence[Action], stream: int) -> int:
        """An executable graph of what actions queue on a stream that nothing else uses; 0 if they cannot be captured.
        Then the stream cannot be used any more."""
        graph = _Pointer()
        begin = self._functions["cuStreamBeginCapture_v2"], stream, _RELAXED
        end = self._functions["cuStreamEndCapture"], stream, ctypes.byref(graph)
        failed = first_failure([begin, *actions, end])
        return self._ready(graph.value) if failed is None and graph.value else 0

    def destroy_graph(self, graph: int) -> None:
        self._call("cuGraphExecDestroy", graph)
