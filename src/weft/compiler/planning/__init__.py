"""From a program to a plan: its steps, which memory they use, and how plans are kept."""
