"""A double pendulum, computed from its energy alone.

Two weights hang on two rods, one below the other. The program defines only their kinetic and potential energy;
derivatives give the rest:

- `mx.grad` of the difference of both energies gives momenta and forces,
- `mx.jvp` of such a gradient, which is a product of the Hessian matrix with a vector, gives the change of momenta,
- `mx.vmap` applies the motion of one pendulum to 40,000 of them, and `mx.compile` makes a few kernels of everything.

It draws for which starting angles the lower rod soon turns over the top, and for which it does not: a fractal, because
the motion is chaotic. Energy is conserved, which shows that the derivatives are right.

    python examples/double_pendulum.py              # a picture, in about a minute
    python examples/double_pendulum.py --short      # a coarse picture, in some seconds

It saves its state regularly. After it was stopped it continues from there, with the same bits as without a stop.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

import weft.core as mx

GRAVITY = 9.81  # m/s^2; rods have a length of 1 m, weights a mass of 1 kg
TIME_STEP = 0.01  # s


def energies(angles: mx.array, speeds: mx.array) -> tuple[mx.array, mx.array]:
    """Kinetic and potential energy, in J, of one pendulum: angles of both rods from the vertical, and their speeds."""
    # The position of the lower weight is that of the upper one plus its rod; the same holds for velocities.
    height = -mx.cumsum(mx.cos(angles))
    aside, up = mx.cumsum(mx.cos(angles) * speeds), mx.cumsum(mx.sin(angles) * speeds)
    return 0.5 * (aside**2 + up**2).sum(), GRAVITY * height.sum()


def lagrangian(angles: mx.array, speeds: mx.array) -> mx.array:
    kinetic, potential = energies(angles, speeds)
    return kinetic - potential


def acceleration(angles: mx.array, speeds: mx.array) -> mx.array:
    """The change of the speeds, by Lagrange's equation d/dt (dL/dspeeds) = dL/dangles.

    By the chain rule its left side is `mass @ acceleration + drift`: the momenta dL/dspeeds change with the speeds (by
    the matrix `mass`) and with the angles (`drift`).
    """
    force = mx.grad(lagrangian, argnums=0)(angles, speeds)
    momenta = mx.grad(lagrangian, argnums=1)
    _, (drift,) = mx.jvp(lambda angles: momenta(angles, speeds), [angles], [speeds])

    def mass_times(direction: mx.array) -> mx.array:
        _, (product,) = mx.jvp(lambda speeds: momenta(angles, speeds), [speeds], [direction])
        return product

    mass = mx.vmap(mass_times)(mx.eye(2))
    return mx.linalg.solve(mass, force - drift)


def one_step(angles: mx.array, speeds: mx.array) -> tuple[mx.array, mx.array]:
    """The state of a pendulum one time step later, by the classic Runge-Kutta method."""
    half = TIME_STEP / 2
    a1 = acceleration(angles, speeds)
    v2 = speeds + half * a1
    a2 = acceleration(angles + half * speeds, v2)
    v3 = speeds + half * a2
    a3 = acceleration(angles + half * v2, v3)
    v4 = speeds + TIME_STEP * a3
    a4 = acceleration(angles + TIME_STEP * v3, v4)
    moved = angles + TIME_STEP / 6 * (speeds + 2 * v2 + 2 * v3 + v4)
    return moved, speeds + TIME_STEP / 6 * (a1 + 2 * a2 + 2 * a3 + a4)


@mx.compile
def many_steps(state: dict[str, mx.array]) -> dict[str, mx.array]:
    """All pendulums five steps later. ``over`` is the step in which a lower rod first turned over the top, or 0."""
    angles, speeds, over, step = state["angles"], state["speeds"], state["over"], state["step"]
    for _ in range(5):
        step = step + 1
        angles, speeds = mx.vmap(one_step)(angles, speeds)
        over = mx.where((over == 0) & (mx.abs(angles[:, 1]) > np.pi), step, over)
    return {"angles": angles, "speeds": speeds, "over": over, "step": step}


def started(width: int) -> dict[str, mx.array]:
    """Pendulums at rest, one for each pair of angles."""
    angle = mx.linspace(-np.pi, np.pi, width)
    angles = mx.stack(mx.meshgrid(angle, angle, indexing="xy"), axis=-1).reshape(-1, 2)
    return {
        "angles": angles,
        "speeds": mx.zeros_like(angles),
        "over": mx.zeros(width * width, mx.int32),
        "step": mx.array(0),
    }


def frequencies() -> mx.array:
    """The frequencies of small oscillations, in radians per second, from two matrices of second derivatives."""
    rest = mx.zeros(2)

    def hessian(energy: int, argument: int) -> mx.array:
        def gradient(x: mx.array) -> mx.array:
            at = [rest, rest]
            at[argument] = x
            return mx.grad(lambda *at: energies(*at)[energy], argnums=argument)(*at)

        return mx.vmap(lambda direction: mx.jvp(gradient, [rest], [direction])[1][0])(mx.eye(2))

    mass, stiffness = hessian(0, 1), hessian(1, 0)
    with mx.stream(mx.cpu):
        return mx.sort(mx.sqrt(mx.real(mx.linalg.eigvals(mx.linalg.solve(mass, stiffness)))))


def draw(over: np.ndarray, seconds: float, path: Path) -> None:
    from matplotlib.figure import Figure

    width = int(len(over) ** 0.5)
    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.subplots()
    times = np.where(over > 0, over * TIME_STEP, np.nan).reshape(width, width)
    image = axes.imshow(times, origin="lower", extent=(-180, 180, -180, 180), cmap="magma_r", vmin=0, vmax=seconds)
    axes.set(
        xlabel="angle of the upper rod, degrees",
        ylabel="angle of the lower rod, degrees",
        title="Seconds until it goes over the top (white: not seen to)",
    )
    figure.colorbar(image)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("double-pendulum"), help="where results go")
    parser.add_argument("--short", action="store_true", help="a coarse picture of a shorter time")
    parser.add_argument("--seconds", type=float, help="the time that pendulums swing")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    width, seconds = (24, 2.0) if options.short else (200, 10.0)
    seconds = options.seconds or seconds

    print("small swings, radians per second:", frequencies().tolist(), "(textbooks: sqrt(g (2 -+ sqrt 2)))")
    checkpoint = options.folder / "state.npz"
    state = mx.load(str(checkpoint)) if checkpoint.exists() else started(width)
    total = mx.compile(mx.vmap(lambda angles, speeds: sum(energies(angles, speeds))))
    before = total(started(width)["angles"], started(width)["speeds"])

    began = time.perf_counter()
    while (step := int(state["step"].item())) < round(seconds / TIME_STEP):
        state = many_steps(state)
        mx.eval(state)
        if step % 100 == 0:
            drift = mx.abs(total(state["angles"], state["speeds"]) - before).max().item()
            share = (state["over"] > 0).mean().item()
            print(f"{step * TIME_STEP:5.1f} s: {share:6.1%} went over the top, energy within {drift:.1e} J")
            mx.savez(str(checkpoint), **state)
    mx.savez(str(checkpoint), **state)
    print(f"{width * width:,} pendulums, {time.perf_counter() - began:.1f} s")
    draw(np.array(state["over"]), seconds, options.folder / "over.png")
    print("saved", options.folder / "over.png")


if __name__ == "__main__":
    main()
