"""The error function and its inverse. The coefficients are minimax fits (``tools/fit.py``)."""

from __future__ import annotations

from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.math.logarithm import log
from weft.compiler.codegen.math.parts import FLOAT32, FLOAT64, INFINITY, Table, at_most, fast_two_sum, format_of
from weft.compiler.codegen.values import Value

SPLIT = {FLOAT32: 1.0, FLOAT64: 1.125}
# erf(x) = x + x P(x^2) below the split (tools/fit.py erf_small erf_small64)
SMALL: Table = {
    FLOAT32: (7.806904e-05, -0.0007997853, 0.005187162, -0.026853347, 0.11283579, -0.37612626, 0.12837917),
    FLOAT64: (
        -2.002477767282033e-11,
        2.1853627643043796e-10,
        -1.7002699391639918e-09,
        1.582933027883536e-08,
        -1.650801437701108e-07,
        1.647543123307862e-06,
        -1.4926505896383796e-05,
        0.00012055370599124323,
        -0.0008548328132406936,
        0.005223977646450506,
        -0.026866170647503806,
        0.11283791670969079,
        -0.37612638903184076,
        0.1283791670955126,
    ),
}
# erf(x) = P(x - middle) from there to the end, where it rounds to 1 (tools/fit.py erf_large erf_large64)
MIDDLE_AND_END = {FLOAT32: (2.4375, 3.92), FLOAT64: (3.5546875, 5.93)}
LARGE: Table = {
    FLOAT32: (
        -3.6487117e-07,
        1.2119953e-06,
        2.648454e-06,
        -1.81166e-05,
        2.0167108e-05,
        7.1293776e-05,
        -0.0003010026,
        0.00041541492,
        0.0003767209,
        -0.0030023025,
        0.007206509,
        -0.010702189,
        0.010758687,
        -0.00722905,
        0.0029657492,
        0.99943346,
    ),
    FLOAT64: (
        7.16088313293958e-21,
        -3.000824189803462e-21,
        -4.827972442205885e-19,
        6.620315714272984e-19,
        1.4409263712159038e-17,
        -3.7540621308678175e-17,
        -2.1868613528470933e-16,
        1.0356977014982974e-15,
        7.246960353878575e-16,
        -1.4749000411610136e-14,
        3.5976295688776456e-14,
        5.0405433326562305e-14,
        -6.326601313243079e-13,
        1.8078139777704462e-12,
        1.056359645578265e-12,
        -2.6160825910631095e-11,
        8.59336250001464e-11,
        -3.112046396706007e-11,
        -7.914522223827976e-10,
        3.289125040262257e-09,
        -4.852243929181502e-09,
        -1.1418801023790215e-08,
        8.507746191149683e-08,
        -2.3346382191275362e-07,
        2.538805707148546e-07,
        6.709670255456229e-07,
        -4.299199762732652e-06,
        1.287998934249067e-05,
        -2.732437949953252e-05,
        4.476534769679964e-05,
        -5.8134188256505345e-05,
        5.996418616688736e-05,
        -4.843922272387409e-05,
        2.9701112183447538e-05,
        -1.3049590160667207e-05,
        3.6710934958206357e-06,
        0.9999995020142429,
    ),
}

INVERSE_SPLIT = {FLOAT32: 5.0, FLOAT64: 7.0}
# erfinv(x) = x P(w - first) for w = -log(1 - x^2) below the split, else x Q(sqrt(w) - second), for float64
# x Q(1 / sqrt(w) - second), with as many coefficients
# (tools/fit.py erfinv_central erfinv_central64 erfinv_tail erfinv_tail64)
INVERSE_MIDDLES = {FLOAT32: (1.578125, 3.203125), FLOAT64: (3.375, 0.26171875)}
INVERSE_CENTRAL: Table = {
    FLOAT32: (
        3.443495e-10,
        -1.2024443e-08,
        1.0451472e-07,
        3.170636e-08,
        -5.386843e-06,
        2.0713947e-05,
        0.00018628695,
        -0.002035401,
        0.00039598416,
        0.25046194,
        1.2716278,
    ),
    FLOAT64: (
        2.4478459487305566e-24,
        1.0326388398778098e-23,
        -4.771962182444334e-22,
        5.427107377865367e-22,
        3.4583562519947435e-20,
        -1.8834482940617905e-19,
        -8.813474157395068e-19,
        1.4462948764134795e-17,
        -4.764063368939182e-17,
        -4.195203915795366e-16,
        5.424991353369237e-15,
        -1.5587621875552297e-14,
        -1.835834750303866e-13,
        2.1411412948151817e-12,
        -5.1275743735535194e-12,
        -8.090053797158452e-11,
        8.60127236235899e-10,
        -1.7081888120686403e-09,
        -3.55287621681659e-08,
        3.5797684203239685e-07,
        -6.798170509552945e-07,
        -1.540211998743531e-05,
        0.00016832411413211215,
        -0.0005630153814546815,
        -0.0065214131187013745,
        0.23701385771789002,
        1.71330614594831,
    ),
}
INVERSE_TAIL: Table = {
    FLOAT32: (
        -3.310534e-05,
        9.890464e-05,
        -3.082135e-05,
        -0.0003590392,
        0.0010799416,
        -0.001973623,
        0.0029183098,
        -0.0042572063,
        0.0059330952,
        1.0047296,
        3.0367763,
    ),
    FLOAT64: (
        -4.750866419206936e16,
        5369512035132389.0,
        6715145998071379.0,
        -1439733215298346.0,
        -209899791400071.53,
        77231324663346.47,
        2983258564496.003,
        -3295363620744.8364,
        327137588385.4757,
        31458315554.29505,
        -3065524998.1857705,
        -2847646579.2784758,
        885482123.2664263,
        -140975117.44895062,
        28021563.87321915,
        -9447262.831316262,
        2758537.9791637934,
        -666600.516434829,
        168189.71105675638,
        -45753.50558458961,
        12000.057545699688,
        -3096.0933726452363,
        818.5731127560896,
        -214.40991980304594,
        56.664310679294516,
        -14.729909967717788,
        3.6590247962783202,
    ),
}


def erf(L: Lanes, x: Value) -> Value:
    format_ = format_of(x)
    middle, end = MIDDLE_AND_END[format_]
    size = L.absolute(x)
    large = L.polynomial(at_most(L, size, end) - middle, LARGE[format_])
    small = L.fma(x, L.polynomial(x * x, SMALL[format_]), x)
    return L.select(size > SPLIT[format_], L.copysign(large, x), small)


def erfinv(L: Lanes, x: Value) -> Value:
    """The inverse of erf, in the variable of Giles (Approximating the erfinv function, 2011)."""
    format_ = format_of(x)
    first, second = INVERSE_MIDDLES[format_]
    w = -log(L, (1.0 - x) * (1.0 + x))
    tail = w > INVERSE_SPLIT[format_]
    root = L.sqrt(w)
    if format_ is FLOAT64:
        root = 1.0 / root
    u = L.select(tail, root - second, w - first)
    pairs = zip(INVERSE_TAIL[format_], INVERSE_CENTRAL[format_], strict=True)
    *coefficients, constant = (L.select(tail, L.constant(far, x.dtype), near) for far, near in pairs)
    ratio = coefficients[0]
    for coefficient in coefficients[1:]:
        ratio = L.fma(ratio, u, coefficient)
    whole = fast_two_sum(constant, ratio * u)
    return L.select(w < INFINITY, L.fma(x, whole.high, x * whole.low), x * w)
