"""The pool of threads, in generated code."""
