"""The commands and plain words of answers: styles, operators, functions, letters and English words."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple


def in_order(text: str) -> list[str]:
    """Return the words of `text`, which are separated by space, in their order."""
    return text.split()


def words_of(text: str) -> frozenset[str]:
    """Return the words of `text` as a set."""
    return frozenset(text.split())


def meanings(text: str) -> dict[str, str]:
    """Return a dictionary from each name to its meaning; a line holds one meaning and then all names for it."""
    lines = (line.split() for line in text.strip().splitlines())
    return {name: meaning for meaning, *names in lines for name in names}


Dimension = tuple[tuple[str, int], ...]


class Unit(NamedTuple):
    """A unit: `scale` times the basic unit of its dimension; for angles with `turns`, times half a turn."""

    scale: Fraction
    dimension: Dimension
    turns: bool = False


METRIC = """
m meter meters metre metres | 1 | length 1
g gram grams gramme grammes | 0.001 | mass 1
s second seconds | 1 | time 1
L liter liters litre litres | 0.001 | length 3
l | 0.001 | length 3
N newton newtons | 1 | mass 1 length 1 time -2
J joule joules | 1 | mass 1 length 2 time -2
W watt watts | 1 | mass 1 length 2 time -3
Pa pascal pascals | 1 | mass 1 length -1 time -2
Hz hertz | 1 | time -1
V volt volts | 1 | mass 1 length 2 time -3 current -1
A amp amps ampere amperes | 1 | current 1
C coulomb coulombs | 1 | current 1 time 1
mol mole moles | 1 | amount 1
eV | 1.602176634e-19 | mass 1 length 2 time -2
Ω Omega ohm ohms | 1 | mass 1 length 2 time -3 current -2
F farad farads | 1 | mass -1 length -2 time 4 current 2
"""
"""Symbol and names | scale to basic units | dimension. Each unit also exists with every prefix."""
PREFIXES = {
    "": ("", 0), "k": ("kilo", 3), "c": ("centi", -2), "m": ("milli", -3), "d": ("deci", -1), "M": ("mega", 6),
    "μ": ("micro", -6), "n": ("nano", -9), "G": ("giga", 9), "p": ("pico", -12), "h": ("hecto", 2),
}  # fmt: skip
FIXED = """
K kelvin kelvins | 1 | temperature 1
celsius Celsius | 1 | current 1 time 1
F fahrenheit Fahrenheit | 1 | fahrenheit 1
micron microns um | 0.000001 | length 1
in inch inches | 0.0254 | length 1
ft foot feet | 0.3048 | length 1
yd yard yards | 0.9144 | length 1
mi mile miles | 1609.344 | length 1
acre acres | 4046.8564224 | length 2
hectare hectares ha | 10000 | length 2
cc ccm | 0.000001 | length 3
gal gallon gallons | 0.003785411784 | length 3
qt quart quarts | 0.000946352946 | length 3
pt pint pints | 0.000473176473 | length 3
oz ounce ounces | 0.028349523125 | mass 1
lb lbs pound pounds | 0.45359237 | mass 1
ton tons tonne tonnes | 1000 | mass 1
sec secs | 1 | time 1
min mins minute minutes | 60 | time 1
h hr hrs hour hours | 3600 | time 1
day days | 86400 | time 1
week weeks | 604800 | time 1
month months | 1 | month 1
year years yr yrs | 12 | month 1
decade decades | 120 | month 1
century centuries | 1200 | month 1
mph | 0.44704 | length 1 time -1
kph kmh kmph | 5/18 | length 1 time -1
T tesla teslas | 1 | mass 1 time -2 current -1
mT | 0.001 | mass 1 time -2 current -1
μT | 0.000001 | mass 1 time -2 current -1
Wb weber webers | 1 | mass 1 length 2 time -2 current -1
H henry henries | 1 | mass 1 length 2 time -2 current -2
mH | 0.001 | mass 1 length 2 time -2 current -2
μH | 0.000001 | mass 1 length 2 time -2 current -2
cal calorie calories | 4.184 | mass 1 length 2 time -2
Nm | 1 | mass 1 length 2 time -2
kcal kilocalorie kilocalories | 4184 | mass 1 length 2 time -2
Wh | 3600 | mass 1 length 2 time -2
kWh | 3600000 | mass 1 length 2 time -2
atm atmospheres | 101325 | mass 1 length -1 time -2
mmHg torr | 20265/152 | mass 1 length -1 time -2
bar bars | 100000 | mass 1 length -1 time -2
knot knots | 463/900 | length 1 time -1
rpm | 1/60 | time -1
dollar dollars USD usd buck bucks | 100 | dollar 1
cent cents penny pennies ¢ | 1 | dollar 1
euro euros EUR € | 1 | euro 1
GBP £ | 1 | pound 1
pence | 0.01 | pound 1
yen JPY ¥ | 1 | yen 1
yuan RMB CNY | 1 | yuan 1
rupee rupees INR Rs ₹ | 1 | rupee 1
peso pesos | 1 | peso 1
ruble rubles roubles | 1 | ruble 1
bit bits | 1 | bit 1
byte bytes B | 8 | bit 1
kB KB | 8000 | bit 1
MB | 8000000 | bit 1
GB | 8000000000 | bit 1
TB | 8000000000000 | bit 1
bps | 1 | bit 1 time -1
kbps Kbps | 1000 | bit 1 time -1
Mbps mbps | 1000000 | bit 1 time -1
Gbps gbps | 1000000000 | bit 1 time -1
Tbps tbps | 1000000000000 | bit 1 time -1
KiB | 8192 | bit 1
MiB | 8388608 | bit 1
GiB | 8589934592 | bit 1
unit units | 1 | unit 1
rad rads radian radians | 1 | angle 1
"""
TURNS = {"degree": 180, "degrees": 180, "deg": 180, "arcminute": 10_800, "arcminutes": 10_800}
"""Number of such parts in half a turn."""
NOT_UNITS = ("pm", "cd", "hs")
"""Names that prefixes and symbols would make, but that mean something else: p.m."""


def _specified(table: str) -> list[tuple[list[str], Fraction, Dimension]]:
    rows = []
    for line in table.strip().splitlines():
        names, scale, powers = (part.split() for part in line.split("|"))
        rows.append((names, Fraction(scale[0]), tuple(sorted(zip(powers[::2], map(int, powers[1::2]), strict=True)))))
    return rows


def _table() -> dict[str, Unit]:
    table: dict[str, Unit] = {}
    for (symbol, *names), base, dimension in _specified(METRIC):
        for short, (long, power) in PREFIXES.items():
            unit = Unit(base * Fraction(10) ** power, dimension)
            table.update(dict.fromkeys([short + symbol, *(long + n for n in names)], unit))
    for names, scale, dimension in _specified(FIXED):
        table.update(dict.fromkeys(names, Unit(scale, dimension)))
    angle: Dimension = (("angle", 1),)
    table |= {name: Unit(Fraction(1, parts), angle, True) for name, parts in TURNS.items()}
    table |= dict.fromkeys(("revolution", "revolutions"), Unit(Fraction(2), angle, True))
    for name in NOT_UNITS:
        table.pop(name, None)
    return table


UNITS = _table()
SCALES = {
    "hundred": 100, "thousand": 1_000, "million": 10**6, "millions": 10**6, "billion": 10**9, "billions": 10**9,
    "trillion": 10**12,
    "lakh": 10**5, "crore": 10**7, "dozen": 12, "dozens": 12,
}  # fmt: skip
SQUARED = frozenset({"square", "sq", "squared"})
CUBED = frozenset({"cubic", "cubed"})


def times(a: Dimension, b: Dimension, power: int = 1) -> Dimension:
    """Return the dimension of `a * b**power`."""
    total = dict(a)
    for name, exponent in b:
        total[name] = total.get(name, 0) + exponent * power
    return tuple(sorted((n, e) for n, e in total.items() if e))


DROPPED = words_of("""
    displaystyle textstyle scriptstyle limits nolimits displaylimits nonumber notag
    left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr
    rm bf it sf tt sl itshape bfseries upshape rmfamily boldmath
    tiny footnotesize small normalsize large Large LARGE huge Huge
    mathop mathrel mathbin mathord mathopen mathclose mathinner mathpunct mathstrut strut null relax
    centering noindent hfill hline par smallskip medskip bigskip allowbreak nobreak checkmark blacksquare
""")
"""Commands that change only how an answer looks."""
DROPPED_WITH_ARGUMENT = dict.fromkeys(
    words_of("hspace vspace mspace kern mkern tag label phantom hphantom vphantom color textcolor colorbox"), 1
) | {"fcolorbox": 2, "fontsize": 2}
"""Such commands with the number of their arguments, which are dropped too."""
TEXT_STYLES = words_of("""
    text textbf textit textrm textsf texttt textsc textnormal textup textmd mbox hbox emph uline
""")
MATH_STYLES = words_of("""
    mathrm mathbf mathit mathsf mathtt mathcal mathfrak mathscr mathnormal mathbfit boldsymbol bm pmb bold symbf symrm
    operatorname ensuremath underline boxed fbox framebox underbrace overbrace smash mathclap rlap llap
""")
DECORATIONS = words_of("""
    vec hat bar overline tilde overrightarrow overleftrightarrow dot ddot widehat widetilde widebar underbar
    overset underset stackrel
""")
SAME_DECORATION = {"overline": "bar", "widebar": "bar", "widehat": "hat", "widetilde": "tilde", "overrightarrow": "vec"}
BOLD = words_of("mathbf mathbfit boldsymbol bm pmb bold symbf")
"""Styles that make a vector or a matrix of a letter."""
OPERATORS = meanings(r"""
    ×         times
    *         cdot ast star bullet
    /         div slash
    +         plus
    ±         pm
    ∓         mp
    <=        le leq leqslant leqq
    >=        ge geq geqslant geqq
    <         lt less
    >         gt greater
    !=        ne neq
    ≡         equiv
    ≈         approx approxeq simeq doteq thickapprox fallingdotseq
    in        in isin
    notin     notin
    cup       cup bigcup
    cap       cap bigcap
    setminus  setminus backslash smallsetminus
    and       land wedge
    or        lor vee
    implies   implies Rightarrow Longrightarrow
    ->        to rightarrow mapsto longmapsto
    |         mid vert Vert
    lvert     lVert
    rvert     rVert
    set{      lbrace
    set}      rbrace
    [         lbrack
    ]         rbrack
    (         lparen lgroup
    )         rparen rgroup
    :         colon
    ,         comma
    \\        newline cr
    dots      ldots dots cdots dotsc dotsb vdots ddots textellipsis
    '         prime lq rq
    $         textdollar dollar mathdollar
    £         pounds textsterling
    €         euro texteuro
    %         percent
    therefore therefore qed
    ¬         neg lnot
    iff       iff Leftrightarrow Longleftrightarrow
    subset    subset subsetneq
    supset    supset supsetneq
    sq        square
    dagger    dagger ddagger
""") | {"quad": " "}
OPERATORS |= {
    op: op
    for op in words_of("""
        langle rangle lvert rvert lfloor rfloor lceil rceil circ degree because subseteq supseteq perp parallel cong sim
        ll gg propto trianglelefteq trianglerighteq
    """)
}
TRIGONOMETRIC = words_of("sin cos tan cot sec csc")
INVERSE = meanings("""
    asin arcsin asin
    acos arccos acos
    atan arctan arctg atan
    acot arccot acot
    asec arcsec asec
    acsc arccsc acsc
""")
HYPERBOLIC = words_of("sinh cosh tanh coth sech csch")
NAMED = (
    TRIGONOMETRIC
    | INVERSE.keys()
    | HYPERBOLIC
    | words_of("""
        tg ctg cosec log ln lg exp cis sgn gcd lcm max min Re Im arg
        arsinh arcosh artanh arcsinh arccosh arctanh
    """)
)
UNDONE = words_of("int iint iiint oint sum prod coprod lim limsup liminf sup inf")
"""Commands of expressions that are not evaluated."""
CONSTANTS = meanings("""
    pi    pi
    inf   infty infin
    empty emptyset varnothing empty
    i     imath
    R     R reals Reals
""")
STRUCTURAL = words_of("""
    frac dfrac tfrac cfrac nicefrac sfrac over binom dbinom tbinom choose sqrt cbrt fourthroot
    pmod bmod mod pod substack det
""")
FUNCTIONS = NAMED | UNDONE | CONSTANTS.keys() | STRUCTURAL
# Names of two letters such as "lg" and "tg", and "arg" or "Re", are more often variables when no backslash is there.
PLAIN_NAMES = {name.lower(): name for name in NAMED - words_of("Re Im lg tg arg sgn")} | meanings("""
    sqrt     sqrt
    cbrt     cbrt
    frac     frac
    pi       pi
    theta    theta
    infty    infinity inf oo infty
    emptyset emptyset
    mod      mod
""")
"""Commands that are also written without a backslash, in lower case."""
LETTERS = words_of("""
    alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron rho sigma tau upsilon phi chi psi
    omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell hbar nabla partial angle measuredangle
    triangle aleph jmath forall exists
""")
GREEK = (
    {letter: letter for letter in LETTERS}
    | meanings("""
    epsilon varepsilon
    phi     varphi
    theta   vartheta
    rho     varrho
    sigma   varsigma
    kappa   varkappa
""")
    | {"varpi": "pi var", "top": "T"}
)
ENGLISH = words_of("""
    or and to if in is the of no yes not all any as at by for from it on be are was an per than with via only but so
    do does true false none both when where exist exists dne real set mod odd even one two six ten left right
    east west north south square cubic sq unit units red blue day days way ways men man boy girl car dog cat egg
    box boxes cup cups pen cent cents oder und ou et
""")
"""Short words that letters without a backslash spell, and that would pass for products of variables."""
UNIT_WORDS = frozenset(name for name in UNITS if len(name) > 1)
