"""Forks and the end of the interpreter, while streams and other threads are busy."""

from __future__ import annotations

import os
import sys

import pytest

from tests.checks import run_python

forks = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.skipif(sys.platform == "darwin", reason="system libraries there do not survive a fork"),
]

FORK = """
    import os, signal, threading, warnings

    last_before_fork = []
    os.register_at_fork(before=lambda: [call() for call in last_before_fork])

    import weft.core as mx

    warnings.simplefilter("ignore")  # newer Pythons warn of forks with threads


    def in_child(work):
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            ok = False
            try:
                ok = work()
            finally:
                os._exit(0 if ok else 1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


    def busy(x, rounds, stream=None):
        for _ in range(rounds):
            x = mx.multiply(mx.matmul(mx.sin(x, stream=stream), x, stream=stream), 1e-2, stream=stream)
        return x
"""


def run_forking(program: str, disk_cache: str = "") -> str:
    return run_python(FORK + program, WEFT_DISK_CACHE=disk_cache)


class TestFork:
    pytestmark = forks

    def test_while_streams_are_busy(self) -> None:
        """The child has the values that were being computed, compiled or not, and all its streams work."""
        program = """
    streams = [mx.new_stream(mx.cpu) for _ in range(3)]
    compiled = mx.compile(lambda x: busy(x, 3))
    x = mx.ones((300, 300)) * 0.1
    expected = [(busy(x, 5) + k).tolist() for k in range(3)] + [compiled(x).tolist()]
    for _ in range(5):
        results = [mx.add(busy(x, 5, stream), k, stream=stream) for k, stream in enumerate(streams)]
        mx.async_eval(results)
        with mx.stream(streams[0]):
            results.append(compiled(x))

        def work():
            more = mx.add(results[0], 1, stream=streams[1])
            mx.async_eval(more)
            mx.synchronize(streams[1])
            return [r.tolist() for r in results] == expected and mx.array_equal(more, results[0] + 1).item()

        print(in_child(work), [r.tolist() for r in results] == expected)
    """
        assert run_forking(program) == "0 True\n" * 5

    def test_while_a_pool_of_threads_makes_kernels(self) -> None:
        """During a fork Python holds a lock that a pool needs to start a thread. The fork waits for threads that make
        kernels, and these use a pool: it must not wait after that lock was taken."""
        program = """
    signal.alarm(30)
    entered = threading.Event()
    mx.eval(mx.sin(mx.arange(3.0)))
    from concurrent.futures import ThreadPoolExecutor
    from weft.compiler.codegen import batches

    batches.available_processors = lambda: 2
    submit = ThreadPoolExecutor.submit


    def slow_submit(*args):
        entered.set()
        threading.Event().wait(0.3)  # the main thread forks
        return submit(*args)


    ThreadPoolExecutor.submit = slow_submit
    x = mx.arange(12.0).reshape(3, 4)
    results = [mx.cumsum(mx.sinh(x), axis=1), mx.sort(mx.tan(x), axis=0)]
    thread = threading.Thread(target=mx.eval, args=results)
    thread.start()
    entered.wait()
    print(in_child(lambda: mx.sum(x).item() == 66), results[0].shape)
    thread.join()
    """
        assert run_forking(program, disk_cache="0") == "0 (3, 4)\n"

    def test_while_other_threads_trace_and_evaluate(self) -> None:
        """The child finds open the locks that these threads held at that moment, and their shared data complete."""
        program = """
    stop = threading.Event()
    stream = mx.new_stream(mx.cpu)


    def function(x, k=0):
        return mx.softmax(mx.tanh(x * k) @ x.T, axis=-1).sum() + mx.random.uniform(shape=(3,)).sum() * 0


    shared = mx.compile(function)
    x = mx.ones((8, 8))


    def work(number):
        for k in range(10**9):
            if stop.is_set():
                return
            mx.eval(function(x, k), shared(x, number * 1000 + k % 5), mx.compile(lambda x: function(x, k + 0.5))(x))
            mx.async_eval(mx.add(function(x, k), 1, stream=stream))
            mx.eval(mx.ones((8 + k % 20,)) + 1)


    mx.eval(shared(x, 1))  # imports what generates code: Python's own locks of imports stay closed in a child
    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()


    def in_the_child():
        gradient = mx.grad(lambda x: shared(x, 7))(x)
        fresh = mx.compile(lambda x: function(x, 0.25))(x)
        mx.eval(gradient, fresh, shared(x, 1), mx.add(x, 1, stream=stream))
        return abs(fresh.item() - 8) < 1e-4 and (mx.ones(50) + 1).sum().item() == 100


    codes = [in_child(in_the_child) for _ in range(15)]
    stop.set()
    for thread in threads:
        thread.join()
    print(codes)
    """
        assert run_forking(program) == f"{[0] * 15}\n"

    @pytest.mark.parametrize("delay", [0.0, 0.003, 0.01, 0.03])
    def test_while_another_thread_loads_llvm(self, delay: float) -> None:
        """Python's own import locks would stay closed in a child."""
        program = f"""
    import time

    thread = threading.Thread(target=lambda: mx.eval(mx.exp(mx.ones(3))))
    thread.start()
    time.sleep({delay})
    print(in_child(lambda: mx.sin(mx.zeros(3)).sum().item() == 0))
    """
        assert run_python(FORK + program, WEFT_DISK_CACHE="0") == "0\n"

    def test_while_another_thread_is_in_a_section(self) -> None:
        """The child finds the lock open, and nodes can still drop their inputs."""
        program = """
    from weft.runtime.atomic import sections

    entered, leave = threading.Event(), threading.Event()


    def stay():
        with sections:
            entered.set()
            leave.wait()


    def enter():
        threading.Thread(target=stay).start()
        entered.wait()


    last_before_fork.append(enter)


    def work():
        x = mx.ones((3,)) + 1
        mx.eval(x)
        return x.node.inputs == ()


    print(in_child(work))
    leave.set()
    """
        assert run_forking(program) == "0\n"

    def test_from_another_thread(self) -> None:
        program = """
    codes = []
    x = mx.ones((300, 300))


    def fork():
        codes.append(in_child(lambda: busy(x, 2).shape == (300, 300) and (x + 1).sum().item() == 180000))


    mx.async_eval(busy(x, 10))
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    print(codes)
    """
        assert run_forking(program) == "[0]\n"

    def test_what_is_queued_at_the_last_moment(self) -> None:
        """The fork waits for streams. If another thread queues work after that, the child computes that work itself."""
        program = """
    stream, other = mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)
    compiled = mx.compile(lambda x: busy(x, 3) + 1)
    x = mx.ones((300, 300)) * 0.1
    expected = [busy(x, 8).tolist(), compiled(x).tolist(), mx.sin(x).tolist()]
    results = []


    def queue():
        results.append(busy(x, 8, stream))
        mx.async_eval(results[0])
        with mx.stream(stream):
            results.append(compiled(x))
        results.append(mx.sin(x, stream=other))
        mx.async_eval(results[2])


    last_before_fork.append(queue)
    for wait in ("read", "synchronize", "more"):
        results.clear()


        def work():
            if wait == "synchronize":
                mx.synchronize(stream)
            elif wait == "more":
                mx.eval(mx.add(results[1], 1, stream=stream))
            return [r.tolist() for r in results] == expected


        print(in_child(work), [r.tolist() for r in results] == expected)
    """
        assert run_forking(program) == "0 True\n" * 3

    @pytest.mark.parametrize("reached", ["write_inputs", "begin_steps"])
    def test_while_another_thread_begins_a_run_in_place(self, reached: str) -> None:
        """The child has no such thread, and computes the value itself. Steps do not begin during the fork: they write
        where they read, so the child could not run them again."""
        program = f"""
    from weft.compiler.running import run

    begun, executed = threading.Event(), []
    before, execute = run.{reached}, run.execute


    def begin(*args):
        begun.set()
        return before(*args)


    def note(*args):
        executed.append(args)
        execute(*args)


    def squares():
        ended = mx.ones((1000, 1000)) + 1
        mx.eval(ended)
        return ended * ended


    mx.eval(squares())  # makes the kernel: a fork waits for threads that make some
    result = squares()


    def enter():
        run.{reached}, run.execute = begin, note
        threading.Thread(target=mx.eval, args=[result]).start()
        begun.wait()
        threading.Event().wait(0.2)


    last_before_fork.append(enter)


    def work():
        return executed == [] and mx.all(result == 4).item()


    print(in_child(work), mx.all(result == 4).item(), len(executed))
    """
        assert run_forking(program) == "0 True 1\n"

    def test_while_another_thread_does_what_must_not_be_left_half_done(self) -> None:
        program = """
    import time
    from weft.runtime.locks import fork_safe_lock

    lock, begun, done = fork_safe_lock(waited_for=True), threading.Event(), []


    def work():
        with lock:
            begun.set()
            time.sleep(0.3)
            done.append(True)


    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    print(in_child(lambda: done == [True] and lock.acquire(blocking=False)))
    thread.join()
    with lock:
        print(in_child(lambda: lock.acquire(blocking=False)))
    """
        assert run_forking(program) == "0\n0\n"


LEAVE = """
    import faulthandler, sys, threading, time
    import weft.core as mx

    faulthandler.dump_traceback_later(40, exit=True)
    mx.set_cache_limit(0)
    streams = [mx.new_stream(mx.cpu) for _ in range(3)]
    x = mx.ones((400, 400)) * 0.1


    def busy(x, rounds, stream=None):
        for _ in range(rounds):
            x = mx.multiply(mx.matmul(mx.sin(x, stream=stream), x, stream=stream), 1e-2, stream=stream)
        return x


    mx.eval(x, busy(x, 1))
"""

LEAVING = {
    "one graph on three streams": "mx.async_eval([busy(x, 40, stream) for stream in streams])",
    "many graphs": """
    for stream in streams:
        y = x
        for _ in range(15):
            y = busy(y, 1, stream)
            mx.async_eval(y)
    del y
    """,
    "a chain over streams": """
    y = x
    for k in range(40):
        y = busy(y, 1, streams[k % 3])
    mx.async_eval(y)
    """,
    "compiled": """
    f = mx.compile(lambda x: busy(x, 10))
    for stream in streams:
        with mx.stream(stream):
            results = [f(x) for _ in range(5)]
    """,
    "a daemon thread": """
    def work():
        while True:
            mx.eval(busy(x, 1))
            mx.async_eval(busy(x, 2, streams[0]))


    threading.Thread(target=work, daemon=True).start()
    time.sleep(0.05)
    """,
    "a thread that finishes its work": """
    def work():
        time.sleep(0.05)
        y = busy(x, 5, streams[1])
        mx.async_eval(y)
        assert y.shape == (400, 400)
        mx.eval(y)


    threading.Thread(target=work).start()
    """,
    "an exit function that computes": """
    import atexit

    mx.async_eval(busy(x, 40, streams[0]))
    atexit.register(lambda: print((x * 0 + 2).sum().item()))
    """,
    "an exception": """
    mx.async_eval([busy(x, 40, stream) for stream in streams])
    sys.exit(0)
    """,
}


@pytest.mark.some_rows(4)
@pytest.mark.parametrize("name", LEAVING)
def test_leaving_while_work_is_queued(name: str) -> None:
    out = run_python(f"{LEAVE}\n    {LEAVING[name].strip()}\n    time.sleep(0.005)\n")
    assert out in ("", "320000.0\n")


def test_an_exit_function_makes_kernels_when_no_thread_can_be_started_any_more(tmp_path) -> None:
    program = """
    import atexit
    import weft.core as mx


    def late():
        x = mx.arange(6.0).reshape(2, 3)
        found = mx.tan(x).sum(), mx.sort(x, axis=0), mx.cumsum(x)
        mx.eval(found)
        print(found[1].tolist(), found[2][-1].item())


    atexit.register(late)
    """
    assert run_python(program, WEFT_CACHE_DIR=str(tmp_path)) == "[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]] 15.0\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", LEAVING)
def test_leaving_many_times(name: str) -> None:
    for delay in range(40):
        run_python(f"{LEAVE}\n    {LEAVING[name].strip()}\n    time.sleep({delay / 1000})\n")
