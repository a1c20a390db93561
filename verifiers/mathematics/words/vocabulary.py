"""The commands and plain words of answers: styles, operators, functions, letters and English words."""

from __future__ import annotations

from verizero.verifiers.mathematics.words.tables import meanings, words_of
from verizero.verifiers.mathematics.words.units import UNITS

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
OPERATORS = meanings(r"""
    *         times cdot ast star bullet
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
    implies   implies Rightarrow Longrightarrow iff Leftrightarrow
    ->        to rightarrow mapsto longmapsto
    |         mid vert
    ||        Vert lVert rVert
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
    sq        square
    dagger    dagger ddagger
""") | {"quad": " "}
OPERATORS |= {op: op for op in words_of("langle rangle lvert rvert lfloor rfloor lceil rceil circ degree because")}
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
    triangle perp parallel aleph jmath cong sim forall exists subset subseteq
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
    | {"varpi": "pi var"}
)
ENGLISH = words_of("""
    or and to if in is the of no yes not all any as at by for from it on be are was an per than with via only but so
    do does true false none both when where exist exists dne real set mod odd even one two six ten left right
    east west north south square cubic sq unit units red blue day days way ways men man boy girl car dog cat egg
    box boxes cup cups pen cent cents oder und ou et
""")
"""Short words that letters without a backslash spell, and that would pass for products of variables."""
UNIT_WORDS = frozenset(name for name in UNITS if len(name) > 1)
