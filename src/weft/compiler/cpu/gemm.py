"""Products of complex matrices by a BLAS routine, as a step of a plan."""

from __future__ import annotations

from functools import cache

from weft.compiler.codegen import loading

# Row-major C = A B is column-major C' = B' A', so the routine gets the operands in the other order. A unit is one
# tile of the result of one product of the batch.
_GEMM = """
declare void @weft_gemm(ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr, ptr)

define internal ptr @operand(ptr %numbers, ptr %table, i64 %which, i64 %batch) {
entry:
  %sp = getelementptr i64, ptr %numbers, i64 %which
  %slot = load i64, ptr %sp
  %op = getelementptr i64, ptr %sp, i64 1
  %offset = load i64, ptr %op
  %tp = getelementptr ptr, ptr %table, i64 %slot
  %base = load ptr, ptr %tp
  %start = getelementptr i8, ptr %base, i64 %offset
  %cp = getelementptr i64, ptr %numbers, i64 22
  %axes = load i64, ptr %cp
  %mine = sdiv i64 %which, 2
  br label %loop
loop:
  %axis = phi i64 [%axes, %entry], [%axis1, %body]
  %rest = phi i64 [%batch, %entry], [%rest1, %body]
  %address = phi ptr [%start, %entry], [%address1, %body]
  %more = icmp sgt i64 %axis, 0
  br i1 %more, label %body, label %out
body:
  %axis1 = sub i64 %axis, 1
  %first = mul i64 %axis1, 4
  %position = add i64 %first, 23
  %ep = getelementptr i64, ptr %numbers, i64 %position
  %extent = load i64, ptr %ep
  %index = urem i64 %rest, %extent
  %rest1 = udiv i64 %rest, %extent
  %own = add i64 %mine, 1
  %dp = getelementptr i64, ptr %ep, i64 %own
  %stride = load i64, ptr %dp
  %distance = mul i64 %index, %stride
  %address1 = getelementptr i8, ptr %address, i64 %distance
  br label %loop
out:
  ret ptr %address
}

define internal i64 @number(ptr %numbers, i64 %position) {
  %p = getelementptr i64, ptr %numbers, i64 %position
  %n = load i64, ptr %p
  ret i64 %n
}

define internal i64 @extent(i64 %whole, i64 %tile, i64 %index) {
  %start = mul i64 %tile, %index
  %rest = sub i64 %whole, %start
  %less = icmp slt i64 %rest, %tile
  %extent = select i1 %less, i64 %rest, i64 %tile
  ret i64 %extent
}

define internal ptr @moved(ptr %p, i64 %index, ptr %numbers, i64 %position) {
  %step = call i64 @number(ptr %numbers, i64 %position)
  %distance = mul i64 %step, %index
  %q = getelementptr i8, ptr %p, i64 %distance
  ret ptr %q
}

define void @gemm_complex64(ptr %numbers, ptr %table, i64 %begin, i64 %end) {
entry:
  %one = alloca [2 x float]
  %zero = alloca [2 x float]
  %m = alloca i64
  %n = alloca i64
  store [2 x float] [float 1.0, float 0.0], ptr %one
  store [2 x float] zeroinitializer, ptr %zero
  %rows = call i64 @number(ptr %numbers, i64 6)
  %columns = call i64 @number(ptr %numbers, i64 7)
  %k = getelementptr i64, ptr %numbers, i64 8
  %lda = getelementptr i64, ptr %numbers, i64 9
  %ldb = getelementptr i64, ptr %numbers, i64 10
  %ldc = getelementptr i64, ptr %numbers, i64 11
  %ta = getelementptr i64, ptr %numbers, i64 12
  %tb = getelementptr i64, ptr %numbers, i64 13
  %tile_rows = call i64 @number(ptr %numbers, i64 14)
  %tile_columns = call i64 @number(ptr %numbers, i64 15)
  %tiles_down = call i64 @number(ptr %numbers, i64 16)
  %tiles_across = call i64 @number(ptr %numbers, i64 17)
  br label %loop
loop:
  %i = phi i64 [%begin, %entry], [%i1, %body]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %out
body:
  %across = urem i64 %i, %tiles_across
  %i_rest = udiv i64 %i, %tiles_across
  %down = urem i64 %i_rest, %tiles_down
  %batch = udiv i64 %i_rest, %tiles_down
  %a0 = call ptr @operand(ptr %numbers, ptr %table, i64 0, i64 %batch)
  %b0 = call ptr @operand(ptr %numbers, ptr %table, i64 2, i64 %batch)
  %c0 = call ptr @operand(ptr %numbers, ptr %table, i64 4, i64 %batch)
  %a = call ptr @moved(ptr %a0, i64 %down, ptr %numbers, i64 18)
  %b = call ptr @moved(ptr %b0, i64 %across, ptr %numbers, i64 19)
  %c1 = call ptr @moved(ptr %c0, i64 %down, ptr %numbers, i64 20)
  %c = call ptr @moved(ptr %c1, i64 %across, ptr %numbers, i64 21)
  %m_here = call i64 @extent(i64 %rows, i64 %tile_rows, i64 %down)
  store i64 %m_here, ptr %m
  %n_here = call i64 @extent(i64 %columns, i64 %tile_columns, i64 %across)
  store i64 %n_here, ptr %n
  call void @weft_gemm(ptr %tb, ptr %ta, ptr %n, ptr %m, ptr %k,
      ptr %one, ptr %b, ptr %ldb, ptr %a, ptr %lda, ptr %zero, ptr %c, ptr %ldc)
  %i1 = add i64 %i, 1
  br label %loop
out:
  ret void
}
"""


@cache
def gemm_step(routine: int) -> int:
    """The address of a step that multiplies complex matrices with a BLAS routine."""
    return loading.load(_GEMM, lambda: _GEMM, ("gemm_complex64",), {"weft_gemm": routine})["gemm_complex64"]
