"""LLVM IR as text (numbers, arithmetic, loops and branches), and machine code from it. Targets write their code with
it."""
