"""``WEFT_MATMUL_PRECISION``."""

from __future__ import annotations

from tests.checks import run_python


def test_the_environment_sets_the_precision() -> None:
    program = "import weft; print(weft.get_matmul_precision())"
    assert run_python(program, WEFT_MATMUL_PRECISION="fast").strip() == "fast"
    refused = "try:\n    import weft.core\nexcept ValueError as error:\n    print(error)"
    assert "it must be 'reproducible' or 'fast'" in run_python(refused, WEFT_MATMUL_PRECISION="high")
