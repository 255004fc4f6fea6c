"""From LLVM IR text to machine code of this process.

A module under construction is text. A compiled one is an `Image`, or object code that LLVM has to link. A loaded one is
the addresses of its functions. As these have different types, none can be used too early. Importing this module loads
LLVM, which takes 40 ms: `weft.compiler.codegen.loading` imports it when something has to be compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import llvmlite.binding as llvm

from weft.compiler.codegen import llvm_threads
from weft.compiler.codegen.elf import image_of
from weft.compiler.codegen.host import OPTIMISATION, Host, lesser
from weft.compiler.codegen.llvm_threads import ThreadCompiler
from weft.runtime import machine_code
from weft.runtime.atomic import without_interrupts
from weft.runtime.machine_code import Image


class CodeGenerationError(RuntimeError):
    """LLVM rejected a module. This is a fault of Weft, never of the user's program."""


class CodeGenerator:
    """Optimises and emits modules for one host, and links what is not an `Image`."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features()
        version = ".".join(map(str, llvm.llvm_version_info))
        name = llvm.get_host_cpu_name()
        native = Host(llvm.get_process_triple(), name, _preferred(features), version, OPTIMISATION)
        self.host = lesser(native, {name for name, present in features.items() if present})
        self._compilers: list[ThreadCompiler] = []
        """Compilers that no thread is using."""
        self._linker: llvm.LLJIT | None = None
        self._libraries: list[llvm.ResourceTracker] = []

    def _machine(self, optimisation: int) -> llvm.TargetMachine:
        return llvm.Target.from_triple(self.host.triple).create_target_machine(
            cpu=self.host.name, features=self.host.features, opt=optimisation, reloc="pic", codemodel="default"
        )

    def object_code(self, text: str, quickly: bool = False) -> bytes:
        """Relocatable object code of a module. Emitting it ``quickly`` gives slower code.

        The one pass is the one that turns stack slots into registers. Others were measured: instruction combining takes
        as long as writing the IR, and makes the code slower more often than faster.
        """
        try:
            compiler = self._compilers.pop()
        except IndexError:
            compiler = self._new_compiler()
        try:
            module = llvm.parse_assembly(text, llvm.create_context())
            module.verify()
        except RuntimeError as error:
            raise CodeGenerationError(f"{error}\nin the module\n{text}") from error
        module.triple = self.host.triple
        module.data_layout = compiler.layout
        passes = llvm.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.run(module, compiler.builder)
        machine = self._machine(0) if quickly else compiler.machine
        emitted = bytes(machine.emit_object(module))
        self._compilers.append(compiler)
        return emitted

    def _new_compiler(self) -> ThreadCompiler:
        machine = self._machine(int(self.host.optimisation))
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(2))
        return ThreadCompiler(machine, builder, str(machine.target_data))

    def link(self, object_code: bytes, functions: tuple[str, ...], provided: Mapping[str, int]) -> dict[str, int]:
        """Load object code into the process and return the addresses of ``functions``."""
        if self.host.triple.startswith("aarch64") and "linux" in self.host.triple:
            # LLVM's linker aborts the process if the system has placed two sections too far from each other.
            raise CodeGenerationError("On ARM64 only code that is an image can be loaded, and this is not.")
        if self._linker is None:
            self._linker = llvm.create_lljit_compiler(self._machine(int(self.host.optimisation)))
        builder = llvm.JITLibraryBuilder().add_object_img(object_code).add_current_process()
        for name, address in provided.items():
            builder = builder.import_symbol(name, address)
        for name in functions:
            builder = builder.export_symbol(name)
        library = builder.link(self._linker, f"weft{len(self._libraries)}")
        self._libraries.append(library)
        return {name: library[name] for name in functions}


_AVOIDED = {"avx512f": "prefer-256-bit", "avx512fp16": "avx512fp16"}
"""What code does without, by the feature of a processor. Vectors of 512 bits are preferred where they exist. LLVM would
prefer the conversions of AVX512-FP16 to those of F16C, which make the same numbers and shuffle less: from memory to 32
bytes, an instruction of F16C shuffles nothing."""


def _preferred(features: llvm.FeatureMap) -> str:
    """The host's features, without what code avoids."""
    avoided = [f"-{name}" for feature, name in _AVOIDED.items() if features.get(feature)]
    return ",".join([str(features.flatten()), *avoided])


@cache
def generator() -> CodeGenerator:
    return CodeGenerator()


@cache
def host() -> Host:
    """The processor that code is generated for."""
    return without_interrupts(lambda: generator().host)


def make(text: str, functions: tuple[str, ...], quickly: bool = False) -> Image | bytes:
    """The machine code of a module that defines ``functions``."""
    object_code = without_interrupts(lambda: generator().object_code(text, quickly))
    return image_of(object_code, functions) or object_code


def make_apart(text: str, functions: tuple[str, ...], quickly: bool = False) -> Image | bytes:
    """As `make`, for several threads at once, with interrupts held back. `host` must have been called before."""
    with llvm_threads.apart():
        object_code = generator().object_code(text, quickly)
    return image_of(object_code, functions) or object_code


def link(object_code: bytes, functions: tuple[str, ...], provided: Mapping[str, int]) -> dict[str, int]:
    """Load object code; returns the addresses of ``functions``. It may call what is ``provided`` by address."""
    return without_interrupts(lambda: generator().link(object_code, functions, provided))


def load(text: str, *functions: str) -> dict[str, int]:
    """Make a module and return the addresses of its functions."""
    made = make(text, functions)
    return machine_code.load(made, {}) if isinstance(made, Image) else link(made, functions, {})
