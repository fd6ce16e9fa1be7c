"""Functions with the same digits on every processor: the right ones."""

from __future__ import annotations

import ast
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import special

from analysis.stats import functions, t_test
from analysis.stats.curve_summaries import best

ROOT = Path(__file__).parents[2]


def test_logarithms_and_exponentials_are_the_nearest_doubles() -> None:
    values = np.random.default_rng(0).uniform(1e-3, 1e3, 40)
    assert functions.log(values) == pytest.approx(np.log(values), rel=1e-15, abs=1e-16)
    assert functions.log10(values.reshape(8, 5)) == pytest.approx(np.log10(values).reshape(8, 5), rel=1e-15, abs=1e-16)
    assert functions.log10([1e-3, 1, 1e9]).tolist() == [-3, 0, 9]
    assert [functions.exp(x) for x in (0.0, 1.0, -1.0)] == pytest.approx([1, math.e, 1 / math.e], rel=1e-15)
    assert functions.exp(710.0) == math.inf and functions.exp(-800.0) == 0 and functions.exp(-math.inf) == 0
    assert functions.log(0.5) == pytest.approx(-math.log(2), rel=1e-15)


def test_distributions_are_scipys_to_thirteen_digits() -> None:
    # 5e-13: half a unit of the last of 13 digits, of a number that begins with 1.
    for df, chance in ((1, 0.9), (2, 0.975), (7.3, 0.995), (29, 0.6)):
        quantile = functions.t_quantile(df, chance)
        assert quantile == pytest.approx(special.stdtrit(df, chance), rel=5e-13)
        assert functions.t_below(df, quantile) == pytest.approx(chance, rel=1e-12)
        assert functions.chi_square_above(df, chance) == pytest.approx(special.chdtri(df, chance), rel=5e-13)
    assert functions.normal_below(functions.normal_quantile(0.975)) == pytest.approx(0.975, rel=1e-12)
    assert repr(functions.t_quantile(2, 0.975)) == "4.302652729749"


def test_rounding_is_to_thirteen_digits_of_any_size() -> None:
    assert functions.rounded(0.012345678901234567) == 0.01234567890123
    assert functions.rounded(sys.float_info.min / 3) > 0 and functions.rounded(-math.inf) == -math.inf
    assert math.isnan(functions.rounded(math.nan)) and functions.rounded(0.0) == 0


@pytest.mark.parametrize("df", [2, 3, 4, 5, 10, 31, 999])
def test_hedges_is_its_gammas(df: int) -> None:
    gammas = math.exp(math.lgamma(df / 2) - math.lgamma((df - 1) / 2)) / math.sqrt(df / 2)
    # lgamma is of the size of 3000 at df = 999: its last digit is the twelfth of the quotient.
    assert t_test.hedges(df) == pytest.approx(gammas, rel=1e-11)


def test_best_is_exact_where_its_sums_are() -> None:
    """The product with 1/3, added up, is not 1."""
    assert best([0, 1, 1, 1, 0], 3) == 1 and best([0.25, 0.5, 0.75, -1], 3, direction="lower") == 0.25 / 3


# The products and functions of numpy whose last bits are those of the processor's kernels, and what stands for them.
KERNELS = {"dot", "matmul", "vdot", "inner", "tensordot", "convolve", "correlate", "polyfit", "cov", "corrcoef"}
KERNELS |= {"lstsq", "solve", "inv", "pinv", "svd", "eigh", "exp", "log", "log1p", "expm1", "log2", "power", "lgamma"}
ALLOWED = {
    ("functions.py", "exp"): "of decimal arithmetic",
    ("functions.py", "log"): "its own",
    ("resample.py", "@"): "shares and counts: sums of halves, exact in any order",
    ("trend.py", "correlate"): "centred ranks: sums of quarters, exact in any order",
}


def test_no_number_of_a_report_comes_from_code_that_the_processor_chooses() -> None:
    found = set()
    for path in sorted((ROOT / "analysis").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
                found.add((path.name, "@"))
            if isinstance(node, ast.Attribute) and node.attr in KERNELS:
                owner = ast.unparse(node.value)
                if owner in ("np", "np.linalg", "math", "special"):
                    found.add((path.name, node.attr))
    assert found - set(ALLOWED) == set()
