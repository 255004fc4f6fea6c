"""Rules of a `custom_function` that return invalid results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import weft.core as mx


def product(**rules: Callable[..., Any]) -> Any:
    @mx.custom_function
    def times(x: mx.array, y: mx.array) -> mx.array:
        return x * y

    for name, rule in rules.items():
        getattr(times, name)(rule)
    return times


def double(**rules: Callable[..., Any]) -> Any:
    @mx.custom_function
    def twice(x: mx.array) -> mx.array:
        return x * 2

    for name, rule in rules.items():
        getattr(twice, name)(rule)
    return twice


def on_tree(**rules: Callable[..., Any]) -> Any:
    @mx.custom_function
    def apply(params: dict[str, mx.array], x: mx.array) -> tuple[mx.array, mx.array]:
        return params["w"] * x, params["b"] + x

    for name, rule in rules.items():
        getattr(apply, name)(rule)
    return apply


X, Y = mx.array([1.0, 2.0]), mx.array([3.0, 4.0])
PARAMS = {"w": mx.array([5.0, 6.0]), "b": mx.array([7.0, 8.0])}

WRONG_VJPS: dict[str, tuple[Callable[..., Any], str]] = {
    "nothing": (lambda p, c, o: None, "None"),
    "one for two": (lambda p, c, o: c, "float32[2]"),
    "one in a tuple": (lambda p, c, o: (c,), "(float32[2],)"),
    "three": (lambda p, c, o: (c, c, c), "(float32[2], float32[2], float32[2])"),
    "another dtype": (lambda p, c, o: (c, c.astype(mx.float16)), "(float32[2], float16[2])"),
    "an integer dtype": (lambda p, c, o: (c.astype(mx.int32), c), "(int32[2], float32[2])"),
    "another shape": (lambda p, c, o: (c, c.sum()), "(float32[2], float32[])"),
    "a number": (lambda p, c, o: (c, 1.0), "(float32[2], 1.0)"),
    "a nested tuple": (lambda p, c, o: (c, (c,)), "(float32[2], (float32[2],))"),
    "text": (lambda p, c, o: "cc", "str"),
}


@pytest.mark.parametrize("name", WRONG_VJPS)
def test_a_wrong_vjp(name: str) -> None:
    rule, got = WRONG_VJPS[name]
    with pytest.raises(ValueError, match="vjp rule") as caught:
        mx.vjp(product(vjp=rule), [X, Y], [X])
    message = str(caught.value)
    assert message.startswith("[custom_function] The vjp rule of product.<locals>.times returned ")
    assert f"returned {got};" in message
    assert "expected (float32[2], float32[2])" in message


@pytest.mark.parametrize(
    ("rule", "got"),
    [
        (lambda p, c, o: None, "None"),
        (lambda p, c, o: 1.0, "1.0"),
        (lambda p, c, o: c.astype(mx.float16), "float16[2]"),
        (lambda p, c, o: (c, c), "(float32[2], float32[2])"),
        (lambda p, c, o: [c.sum()], "[float32[]]"),
    ],
)
def test_a_wrong_vjp_of_one_argument(rule: Callable[..., Any], got: str) -> None:
    with pytest.raises(ValueError, match="vjp rule") as caught:
        mx.grad(lambda x: double(vjp=rule)(x).sum())(X)
    assert f"returned {got}; expected float32[2]" in str(caught.value)


def test_right_vjps() -> None:
    rules: list[Callable[..., Any]] = [lambda p, c, o: (c, None), lambda p, c, o: [c, None], lambda p, c, o: (c, c * 0)]
    for rule in rules:
        assert [g.tolist() for g in mx.vjp(product(vjp=rule), [X, Y], [X])[1]] == [[1.0, 2.0], [0.0, 0.0]]
    rules = [lambda p, c, o: c, lambda p, c, o: (c,), lambda p, c, o: [c]]
    for rule in rules:
        assert mx.vjp(double(vjp=rule), [X], [Y])[1][0].tolist() == [3.0, 4.0]
    assert mx.vjp(double(vjp=lambda p, c, o: (None,)), [X], [Y])[1][0].tolist() == [0.0, 0.0]


def test_vjps_of_trees() -> None:
    def gradient(rule: Callable[..., Any]) -> Any:
        return mx.grad(lambda params, x: on_tree(vjp=rule)(params, x)[0].sum(), argnums=(0, 1))(PARAMS, X)

    params, x = gradient(lambda p, c, o: ({"b": c[1] + 1, "w": c[0] * 2}, None))
    assert (params["w"].tolist(), params["b"].tolist(), x.tolist()) == ([2.0, 2.0], [1.0, 1.0], [0.0, 0.0])
    params, x = gradient(lambda p, c, o: (None, c[0]))
    assert (params["w"].tolist(), x.tolist()) == ([0.0, 0.0], [1.0, 1.0])
    for rule, got in [
        (lambda p, c, o: (c[0], c[0]), "(float32[2], float32[2])"),
        (lambda p, c, o: ({"w": c[0]}, c[0]), "({'w': float32[2]}, float32[2])"),
        (lambda p, c, o: {"w": c[0], "b": c[0]}, "{'w': float32[2], 'b': float32[2]}"),
    ]:
        with pytest.raises(ValueError, match="vjp rule") as caught:
            gradient(rule)
        assert f"returned {got}; expected ({{'w': float32[2], 'b': float32[2]}}, float32[2])" in str(caught.value)


def test_cotangents_of_integers_do_not_matter() -> None:
    @mx.custom_function
    def take(x: mx.array, index: mx.array) -> mx.array:
        return x[index]

    for zero in (lambda index: None, mx.zeros_like, lambda index: mx.zeros(index.shape)):
        take.vjp(lambda p, c, o, zero=zero: (mx.zeros_like(p[0]).at[p[1]].add(c), zero(p[1])))
        assert mx.grad(lambda x: take(x, mx.array([1, 1])).sum())(X).tolist() == [0.0, 2.0]


WRONG_JVPS: dict[str, tuple[Callable[..., Any], str]] = {
    "nothing": (lambda p, t: None, "None"),
    "a number": (lambda p, t: 1.0, "1.0"),
    "another shape": (lambda p, t: t[0].sum(), "float32[]"),
    "another dtype": (lambda p, t: t[0].astype(mx.float16), "float16[2]"),
    "too many": (lambda p, t: (t[0], t[1]), "(float32[2], float32[2])"),
    "none": (lambda p, t: (), "()"),
}


@pytest.mark.parametrize("name", WRONG_JVPS)
def test_a_wrong_jvp(name: str) -> None:
    rule, got = WRONG_JVPS[name]
    with pytest.raises(ValueError, match="jvp rule") as caught:
        mx.jvp(product(jvp=rule), [X, Y], [X, Y])
    message = str(caught.value)
    assert message.startswith("[custom_function] The jvp rule of product.<locals>.times returned ")
    assert f"returned {got}; expected float32[2]" in message


def test_right_jvps() -> None:
    for rule in (lambda p, t: t[0], lambda p, t: (t[0],), lambda p, t: [t[0]]):
        assert mx.jvp(product(jvp=rule), [X, Y], [X, Y])[1][0].tolist() == [1.0, 2.0]

    def outputs_and_tangents(rule: Callable[..., Any]) -> list[Any]:
        apply = on_tree(jvp=rule)
        return [t.tolist() for t in mx.jvp(lambda w, x: apply({"w": w, "b": w}, x), [X, Y], [X, Y])[1]]

    assert outputs_and_tangents(lambda p, t: (t[1], t[0]["w"])) == [[3.0, 4.0], [1.0, 2.0]]
    assert outputs_and_tangents(lambda p, t: [t[1], None]) == [[3.0, 4.0], [0.0, 0.0]]
    with pytest.raises(ValueError, match=r"expected \(float32\[2\], float32\[2\]\)"):
        outputs_and_tangents(lambda p, t: t[1])


def test_a_jvp_of_a_mapped_function_is_checked_for_one_example() -> None:
    rows = mx.stack([X, Y])
    mapped = mx.vmap(product(jvp=lambda p, t: t[0] * 5))
    assert mx.jvp(mapped, [rows, rows], [rows, rows])[1][0].tolist() == [[5.0, 10.0], [15.0, 20.0]]
    with pytest.raises(ValueError, match=r"jvp rule .* returned float32\[\]; expected float32\[2\]"):
        mx.jvp(mx.vmap(product(jvp=lambda p, t: t[0].sum())), [rows, rows], [rows, rows])


ROWS = mx.arange(6.0).reshape(3, 2)

WRONG_VMAPS: dict[str, tuple[Callable[..., Any], str]] = {
    "nothing": (lambda i, a: None, "None"),
    "no axis": (lambda i, a: i[0], "float32[3,2]"),
    "three": (lambda i, a: (i[0], 0, 0), "(float32[3,2], 0, 0)"),
    "an axis out of range": (lambda i, a: (i[0], 2), "(float32[3,2], 2)"),
    "a negative axis out of range": (lambda i, a: (i[0], -3), "(float32[3,2], -3)"),
    "another axis": (lambda i, a: (i[0], 1), "(float32[3,2], 1)"),
    "text for an axis": (lambda i, a: (i[0], "a"), "(float32[3,2], str)"),
    "a bool for an axis": (lambda i, a: (i[0], False), "(float32[3,2], False)"),
    "an unmapped result with an axis too many": (lambda i, a: (i[0], None), "(float32[3,2], None)"),
    "a number": (lambda i, a: (1.0, 0), "(1.0, 0)"),
    "another size": (lambda i, a: (i[0][:2], 0), "(float32[2,2], 0)"),
    "another rank": (lambda i, a: (i[0].sum(axis=1), 0), "(float32[3], 0)"),
    "another dtype": (lambda i, a: (i[0].astype(mx.float16), 0), "(float16[3,2], 0)"),
    "two results": (lambda i, a: ((i[0], i[1]), (0, 0)), "((float32[3,2], float32[3,2]), (0, 0))"),
    "two axes": (lambda i, a: (i[0], (0, 0)), "(float32[3,2], (0, 0))"),
}


@pytest.mark.parametrize("name", WRONG_VMAPS)
def test_a_wrong_vmap(name: str) -> None:
    rule, got = WRONG_VMAPS[name]
    with pytest.raises(ValueError, match="vmap rule") as caught:
        mx.vmap(product(vmap=rule))(ROWS, ROWS)
    message = str(caught.value)
    assert message.startswith("[custom_function] The vmap rule of product.<locals>.times returned ")
    assert f"returned {got};" in message
    assert "float32[2]" in message
    assert "3" in message.partition("expected")[2]


def test_right_vmaps() -> None:
    for rule in (lambda i, a: (i[0], a[0]), lambda i, a: [i[0], 0], lambda i, a: (i[0].T, -1)):
        assert mx.vmap(product(vmap=rule))(ROWS, ROWS).tolist() == ROWS.tolist()
    unmapped = mx.vmap(product(vmap=lambda i, a: (X, None)))
    assert unmapped(ROWS, ROWS).tolist() == [X.tolist()] * 3
    several = mx.vmap(on_tree(vmap=lambda i, a: ((i[1], i[1] * 2), 0)), in_axes=(None, 0))
    assert [r.tolist() for r in several(PARAMS, ROWS)] == [ROWS.tolist(), (ROWS * 2).tolist()]


def test_a_vmap_rule_is_not_asked_if_no_argument_is_mapped() -> None:
    """What the function itself computes from a mapped array that it captures is mapped as usual."""

    def outer(x: mx.array) -> mx.array:
        @mx.custom_function
        def inner(y: mx.array) -> mx.array:
            return x * y

        @inner.vmap
        def _(inputs: Any, axes: Any) -> Any:
            raise AssertionError("nothing is mapped")

        return inner(X)

    assert mx.vmap(outer)(ROWS).tolist() == (ROWS * X).tolist()


def test_a_jvp_rule_is_not_asked_if_no_argument_moves() -> None:
    def outer(x: mx.array) -> mx.array:
        @mx.custom_function
        def inner(y: mx.array) -> mx.array:
            return x * y

        @inner.jvp
        def _(primal: Any, tangent: Any) -> Any:
            raise AssertionError("nothing moves")

        return inner(X)

    assert mx.jvp(outer, [Y], [mx.ones(2)])[1][0].tolist() == X.tolist()


def capturing(kind: str) -> Callable[[mx.array], mx.array]:
    """A function with a rule that uses an array of the function around it."""

    def outer(x: mx.array) -> mx.array:
        captured = x * 3
        rules: dict[str, Callable[..., Any]] = {
            "vjp": lambda p, c, o: c * captured,
            "jvp": lambda p, t: t * captured,
            "vmap": lambda i, a: (i * captured, a),
        }
        return double(**{kind: rules[kind]})(x)

    return outer


CAPTURES: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "vmap": ("vmap", lambda f: mx.vmap(f)(ROWS), "vmap(capturing.<locals>.outer)"),
    "grad of vmap": ("vjp", lambda f: mx.grad(lambda x: mx.vmap(f)(x).sum())(ROWS), "vmap(capturing.<locals>.outer)"),
    "jvp of vmap": ("jvp", lambda f: mx.jvp(mx.vmap(f), [ROWS], [ROWS]), "vmap(capturing.<locals>.outer)"),
    "grad of compile": (
        "vjp",
        lambda f: mx.grad(lambda x: mx.compile(f)(x).sum())(X),
        "compile(capturing.<locals>.outer)",
    ),
    "jvp of compile": ("jvp", lambda f: mx.jvp(mx.compile(f), [X], [X]), "compile(capturing.<locals>.outer)"),
    "vmap of compile": ("vmap", lambda f: mx.vmap(mx.compile(f))(ROWS), "compile(capturing.<locals>.outer)"),
}


@pytest.mark.parametrize("name", CAPTURES)
def test_a_rule_that_captures_a_traced_array(name: str) -> None:
    kind, use, trace = CAPTURES[name]
    with pytest.raises(ValueError, match="rule") as caught:
        use(capturing(kind))
    message = str(caught.value)
    assert message.startswith(f"[custom_function] The {kind} rule of double.<locals>.twice uses ")
    assert trace in message
    assert "argument" in message


def test_a_rule_may_capture_what_is_still_being_traced() -> None:
    def gradient(x: mx.array) -> mx.array:
        return mx.grad(lambda x: capturing("vjp")(x).sum())(x)

    expected = (X * 3).tolist()
    assert gradient(X).tolist() == expected
    assert mx.compile(gradient)(X).tolist() == expected
    assert mx.vmap(gradient)(mx.stack([X])).tolist() == [expected]
