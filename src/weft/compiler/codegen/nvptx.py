"""From LLVM IR text to PTX, the assembly of NVIDIA GPUs. LLVM can generate it on every machine, with or without a card.

Results are those of the IR, bit for bit: LLVM does not fuse multiplications with additions (the PTX is checked for
that), rounds divisions and square roots correctly, and keeps subnormal numbers.
"""

from __future__ import annotations

import re
from functools import cache

import llvmlite.binding as llvm

from weft.compiler.codegen import llvm_threads
from weft.compiler.codegen.jit import CodeGenerationError
from weft.compiler.codegen.llvm_threads import ThreadCompiler
from weft.compiler.codegen.ptx_remedies import as_assemblers_respect_it
from weft.compiler.codegen.shared_functions import MODULES
from weft.runtime.atomic import without_interrupts

TRIPLE = "nvptx64-nvidia-cuda"
_INEXACT = re.compile(r"\b(?:add|sub|mul)\.f(?:32|64)|\.ftz|\.approx|\.full|\bmad\.f")


_compilers: dict[str, list[ThreadCompiler]] = {}
"""Compilers that no thread is using, by architecture."""


@cache
def _initialized() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _new_compiler(architecture: str) -> ThreadCompiler:
    features = _FEATURES.get(architecture, "")
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(cpu=architecture, features=features, opt=3)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    return ThreadCompiler(machine, builder, str(machine.target_data))


_FEATURES = {"sm_90": "+ptx81"}
"""The version of PTX for architectures whose first version lacks instructions that kernels use."""

_WAITS = re.compile(r"^ *(?:declare|call) void @llvm\.nvvm\.griddepcontrol\..*$", re.MULTILINE)
_FIRST_THAT_WAITS = 90
"""The first architecture on which a kernel may begin before the previous one has ended."""


def _whole(text: str, architecture: str) -> str:
    """A module in which declarations of shared functions are replaced by their definitions, for an architecture."""
    if int(architecture.removeprefix("sm_").rstrip("af")) < _FIRST_THAT_WAITS:
        text = _WAITS.sub("", text)
    for module in MODULES:
        called = [name for name in module.functions if re.search(rf"call [a-z]+ @{re.escape(name)}\(", text)]
        if called:
            declared = re.compile(rf"^declare [a-z]+ @{re.escape(called[0])}\(.*$", re.MULTILINE)
            text = declared.sub("", text) + module.text().replace("define double", "define internal double") + "\n"
    return text


def _ptx(text: str, architecture: str) -> str:
    free = _compilers.setdefault(architecture, [])
    try:
        compiler = free.pop()
    except IndexError:
        compiler = _new_compiler(architecture)
    whole = f'target datalayout = "{compiler.layout}"\ntarget triple = "{TRIPLE}"\n{_whole(text, architecture)}'
    try:
        module = llvm.parse_assembly(whole, llvm.create_context())
        module.verify()
    except RuntimeError as error:
        raise CodeGenerationError(f"{error}\nin the module\n{whole}") from error
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.run(module, compiler.builder)
    made = as_assemblers_respect_it(str(compiler.machine.emit_assembly(module)))
    free.append(compiler)
    inexact = _INEXACT.search(made)
    if inexact:
        raise CodeGenerationError(f"PTX rounds in another way: {inexact.group()} in\n{made}")
    return made


def begin() -> None:
    """Initialise LLVM's targets."""
    without_interrupts(_initialized)


def ptx(text: str, architecture: str) -> str:
    """The PTX of a module for an architecture, such as ``sm_90``."""
    begin()
    return without_interrupts(lambda: _ptx(text, architecture))


def ptx_apart(text: str, architecture: str) -> str:
    """As `ptx`, for several threads at once, with interrupts held back. `begin` must have been called before."""
    with llvm_threads.apart():
        return _ptx(text, architecture)
