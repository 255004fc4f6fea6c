"""From LLVM IR text to callable machine code of this process.

A module under construction is text; a loaded kernel is a `Function` with an address. There is nothing between
the two that could be used too early.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from weft.runtime.forking import fork_safe_lock

_lock = fork_safe_lock()


@dataclass(frozen=True)
class Host:
    """The processor that code is generated for."""

    triple: str
    name: str
    features: str


class CodeGenerationError(RuntimeError):
    """LLVM refused a module: a fault of Weft's, never of the user's program."""


class Engine:
    """Optimises, emits and links modules for one host."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features()
        self.host = Host(llvm.get_process_triple(), llvm.get_host_cpu_name(), _preferred(features))
        target = llvm.Target.from_triple(self.host.triple)
        self.machine = target.create_target_machine(
            cpu=self.host.name, features=self.host.features, opt=2, reloc="pic", codemodel="default"
        )
        self._jit = llvm.create_lljit_compiler(self.machine)
        self._builder = llvm.create_pass_builder(self.machine, llvm.create_pipeline_tuning_options(2))
        self._libraries: list[llvm.ResourceTracker] = []

    def object_code(self, text: str) -> bytes:
        """Relocatable object code of a module."""
        try:
            module = llvm.parse_assembly(text)
            module.verify()
        except RuntimeError as error:
            raise CodeGenerationError(f"{error}\nin the module\n{text}") from error
        module.triple = self.host.triple
        module.data_layout = str(self.machine.target_data)
        passes = llvm.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.run(module, self._builder)
        return bytes(self.machine.emit_object(module))

    def link(self, image: bytes, symbols: tuple[str, ...]) -> dict[str, int]:
        """Load object code into the process and return the addresses of ``symbols``."""
        builder = llvm.JITLibraryBuilder().add_object_img(image).add_current_process()
        for symbol in symbols:
            builder = builder.export_symbol(symbol)
        library = builder.link(self._jit, f"weft{len(self._libraries)}")
        self._libraries.append(library)
        return {symbol: library[symbol] for symbol in symbols}


def _preferred(features: llvm.FeatureMap) -> str:
    """The host's features, with 512-bit vectors preferred where they exist."""
    text = str(features.flatten())
    return text + ",-prefer-256-bit" if features.get("avx512f") else text


@cache
def _engine() -> Engine:
    return Engine()


def host() -> Host:
    """The processor that code is generated for."""
    with _lock:
        return _engine().host


def load(text: str, *symbols: str) -> dict[str, int]:
    """Compile a module and return the addresses of its functions."""
    with _lock:
        engine = _engine()
        return engine.link(engine.object_code(text), symbols)
