"""Arithmetic on integers and pointers, for generated functions that are not kernels of fused groups."""

from __future__ import annotations

from weft.compiler.codegen.emitter import Emitter


class Integers:
    """Writes arithmetic on ``i64`` and on pointers, and reads the numbers of a step."""

    def __init__(self, e: Emitter) -> None:
        self.e = e

    def number(self, position: int | str) -> str:
        """A number of the step."""
        return self.e.load("i64", self.e.assign(f"getelementptr i64, ptr %numbers, i64 {position}"))

    def add(self, left: str, right: str | int) -> str:
        return self.e.assign(f"add i64 {left}, {right}")

    def subtract(self, left: str | int, right: str | int) -> str:
        return self.e.assign(f"sub i64 {left}, {right}")

    def multiply(self, left: str, right: str | int) -> str:
        return self.e.assign(f"mul i64 {left}, {right}")

    def rounded_up(self, number: str, multiple: int) -> str:
        """``number`` rounded up to a multiple of ``multiple``, a power of two."""
        return self.e.assign(f"and i64 {self.add(number, multiple - 1)}, {-multiple}")

    def divide(self, left: str, right: str | int) -> str:
        return self.e.assign(f"udiv i64 {left}, {right}")

    def remainder(self, left: str, right: str | int) -> str:
        return self.e.assign(f"urem i64 {left}, {right}")

    def compare(self, relation: str, left: str, right: str | int) -> str:
        return self.e.assign(f"icmp {relation} i64 {left}, {right}")

    def either(self, condition: str, yes: str | int, no: str | int) -> str:
        return self.e.assign(f"select i1 {condition}, i64 {yes}, i64 {no}")

    def smaller(self, left: str, right: str | int) -> str:
        return self.either(self.compare("slt", left, right), left, right)

    def larger(self, left: str, right: str | int) -> str:
        return self.either(self.compare("sgt", left, right), left, right)

    def both_hold(self, one: str, other: str) -> str:
        return self.e.assign(f"and i1 {one}, {other}")

    def negated(self, condition: str) -> str:
        return self.e.assign(f"xor i1 {condition}, true")

    def moved(self, pointer: str, distance: str | int, element: str = "i8") -> str:
        """``pointer`` moved by a number of elements of an LLVM type."""
        return self.e.assign(f"getelementptr {element}, ptr {pointer}, i64 {distance}")

    def memory(self, slot: int) -> str:
        """An address from two numbers of the step, at ``slot`` and after it: an entry of the table, an offset in
        bytes."""
        entry = self.e.assign(f"getelementptr ptr, ptr %table, i64 {self.number(slot)}")
        return self.moved(self.e.load("ptr", entry), self.number(slot + 1))
