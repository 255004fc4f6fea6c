"""LLVM IR as text (numbers, arithmetic, loops and branches), and machine code from it; other rooms write with it."""
