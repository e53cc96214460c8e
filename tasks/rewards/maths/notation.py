r"""Converts mathematical text to the uniform spelling: `\dfrac12`, `π/3`, `\mathrm{~cm}`, `\$5`.

    text -> characters -> currency -> commands -> words -> text with one spelling per symbol

The rules are lines of tables and do not depend on what an expression means. Also splits text in the
uniform spelling at signs outside brackets, and removes outer brackets.
"""

from __future__ import annotations

import re

CHARACTERS = {
    "π": r"\pi ", "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ",
    "Ø": r"\emptyset ", "√": r"\sqrt ", "∼": r"\approx ", "≃": r"\approx ", "≐": r"\approx ",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "≡": r"\equiv ", "∈": r"\in ",
    "∉": r"\notin ", "±": r"\pm ", "∓": r"\mp ", "×": "*", "·": "*", "⋅": "*", "∙": "*", "÷": "/",
    "°": r"\degree ", "∠": r"\angle ", "⟨": r"\langle ", "⟩": r"\rangle ", "∨": r"\lor ",
    "∧": r"\land ", "→": r"\to ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ",
    "ε": r"\epsilon ", "θ": r"\theta ", "λ": r"\lambda ", "μ": r"\mu ", "ρ": r"\rho ",
    "σ": r"\sigma ", "τ": r"\tau ", "φ": r"\phi ", "ω": r"\omega ", "–": "-", "—": "-",
    "∖": r"\setminus ", "~": " ",
}  # fmt: skip
CURRENCIES = {
    r"\$": "dollars", "€": "euros", "£": "pounds", "¥": "yen", "₹": "rupees", r"\pounds": "pounds",
    r"\euro": "euros",
}  # fmt: skip
# A command and its uniform spelling; empty if the command is dropped.
COMMANDS = {
    "dfrac": r"\frac ", "tfrac": r"\frac ", "cfrac": r"\frac ", "dbinom": r"\binom ",
    "tbinom": r"\binom ", "cdot": "*", "times": "*", "ast": "*", "div": "/", "leq": r"\le ",
    "leqslant": r"\le ", "geq": r"\ge ", "geqslant": r"\ge ", "neq": r"\ne ", "lt": "<", "gt": ">",
    "lbrace": r"\{", "rbrace": r"\}", "lbrack": "[", "rbrack": "]", "lvert": "|", "rvert": "|",
    "vert": "|", "mid": "|", "varnothing": r"\emptyset ", "colon": ":", "vee": r"\lor ",
    "wedge": r"\land ", "left": "", "right": "", "big": "", "Big": "", "bigl": "", "bigr": "",
    "Bigl": "", "Bigr": "", "bigg": "", "Bigg": "", "biggl": "", "biggr": "", "displaystyle": "",
    "textstyle": "", "limits": "", "quad": " ", "qquad": " ", "thinspace": " ", "bmod": r"\mod ",
    "pmod": r"\mod ", "varphi": r"\phi ", "varepsilon": r"\epsilon ", "infin": r"\infty ",
    "lg": r"\log ", "simeq": r"\approx ", "sim": r"\approx ", "doteq": r"\approx ",
    "approxeq": r"\approx ", "underline": "", "large": "", "Large": "", "huge": "", "Huge": "",
    "bf": "", "it": "", "rm": "", "textdegree": r"\degree ", "circ": r"\circ ",
    "backslash": r"\setminus ", "R": r"\mathbb{R}", "bigcup": r"\cup ", "reals": r"\mathbb{R}",
    "Reals": r"\mathbb{R}", "arsinh": r"\operatorname{arsinh}",
}  # fmt: skip
TEXTS = (
    "text", "textbf", "textit", "textrm", "textsf", "texttt", "textnormal", "mathrm", "mathbf",
    "mathsf", "mathit", "mbox", "hbox", "boldsymbol", "bm", "operatorname", "emph",
)  # fmt: skip
FUNCTIONS = (
    "sqrt", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "sin", "cos", "tan", "cot",
    "ln", "log", "exp",
)  # fmt: skip
NAMES = ("pi", "infty", "theta", "alpha", "beta", "gamma", "lambda", "degree")
WORDS = {
    "infinity": r"\infty ", "asin": r"\arcsin ", "acos": r"\arccos ", "atan": r"\arctan ",
    "mod": r"\mod ",
    # The others would be read as letters side by side.
    **{word: rf"\text{{{word}}}" for word in ("yes", "no", "odd", "dne")},
}  # fmt: skip
SCALES = {
    "hundred": 2, "thousand": 3, "lakh": 5, "million": 6, "crore": 7, "billion": 9,
    "trillion": 12, "quadrillion": 15,
}  # fmt: skip
NOTHING = r"(?:there (?:is|are) )?no (?:real )?solutions?|none|empty set|the empty set"

_DIGITS = r"[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?|\.[0-9]+"
_CHARACTER = re.compile("|".join(map(re.escape, CHARACTERS)))
_ROOT = re.compile(r"√\s*([0-9]+|[a-z])(?![0-9])")  # reaches over all its digits
_BOLD = re.compile(r"\s*\*\*((?:(?!\*\*).)*)\*\*\s*", re.DOTALL)  # all of it, no power
_BOLD_LABEL = re.compile(r"\A(?:\*\*)?(\(?[A-J]\)?[.):]?)\*\*(?=[\s.):])")
_REVERSED = re.compile(r"\s*([\[\]])([^\[\]]*)([\[\]])\s*")  # ]0,1[ is (0,1)
_DELIMITERS = re.compile(r"(?<!\\)\\[()\[\]]|(?<!\\)\$")
_ABOUT = re.compile(r"\A\s*~(?=\s*[-+0-9.=\\])")  # before a number; elsewhere it is a blank
_FONT = re.compile(
    rf"\\(?:{'|'.join(TEXTS)})\s*(?=[0-9\\]|\{{[^{{}}]*(?:\{{|\\[a-zA-Z]))"
    r"|\\(?:text)?color\s*\{\w+\}"
)
_SPACES = re.compile(r"(?<!\\)\\[,;:!> ]|\{\s*\}|(?<=[0-9])\{:\}")
_CURRENCY = re.compile(rf"({'|'.join(map(re.escape, CURRENCIES))})\s*({_DIGITS})")
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_TEXT = re.compile(rf"\\(?:{'|'.join(TEXTS)})\s*\{{([^{{}}]*)\}}")
_KNOWN = "|".join((*FUNCTIONS, *NAMES, *WORDS))
_WORD = re.compile(rf"\\text\{{[^{{}}]*\}}|(?<![A-Za-z\\])({_KNOWN})(?![A-Za-z])", re.IGNORECASE)
_DEGREE = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)")
_OVER = re.compile(r"\{([^{}]*)\\over(?![a-zA-Z])([^{}]*)\}")
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?: [0-9]{3})+(?![0-9,])")
_COMMAS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_SCALE = re.compile(rf"({_DIGITS})\s*(\\text\{{\s*)?({'|'.join(SCALES)})(?![A-Za-z])(\s*\}})?")
_QUANTITY = re.compile(rf"([-+]?(?:{_DIGITS}))\s*([A-Za-z][A-Za-z /^0-9]+)")
_CLOCK = re.compile(r"(?:\\text\{\s*)?([ap])\.?\s?m\.?(?:\s*\})?\s*\Z", re.IGNORECASE)
_NOTHING = re.compile(rf"\s*(?:\\text\{{\s*)?(?:{NOTHING})(?:\s*\}})?\s*", re.IGNORECASE)
_CONNECTIVES = {
    "or": " or ", "and": " and ", "mod": r"\mod ", "percent": "%", "degrees": r"\degree ",
    "degree": r"\degree ",
}  # fmt: skip
_PERCENT = re.compile(r"(?<=[0-9}\s])\s*(?:percent|per cent)(?![a-z])")


def uniform(text: str) -> str:
    """Convert a text to the uniform spelling; the result is at most a few times as long."""
    bold = _BOLD.fullmatch(text)
    text = bold[1] if bold else _BOLD_LABEL.sub(r"\1", text)
    if turned := _REVERSED.fullmatch(text):  # ]0,1[ as (0,1)
        text = f"{'(['[turned[1] == '[']}{turned[2]}{')]'[turned[3] == ']']}"
    text = _FONT.sub("", text.replace("**", "^"))
    text = _DELIMITERS.sub("", _TEXT.sub(_text, text))
    text = _ROOT.sub(r"\\sqrt{\1}", _ABOUT.sub(r"\\approx ", text))
    text = _CHARACTER.sub(lambda match: CHARACTERS[match[0]], text)
    text = re.sub(r"(?<=[0-9])\\,(?=[0-9]{3}(?![0-9]))|(?<=[0-9])\{,\}(?=[0-9]{3})", "", text)
    text = _CURRENCY.sub(lambda match: rf"{match[2]}\text{{{CURRENCIES[match[1]]}}}", text)
    text = text.replace(r"\$", "").replace("{,}", ",").replace(r"\%", "%")
    text = _COMMAND.sub(lambda match: COMMANDS.get(match[1], match[0]), text)
    text = _SPACES.sub(lambda match: {r"\!": "", "{:}": ":"}.get(match[0], " "), text)
    text = _DEGREE.sub(lambda _: r"\degree ", _OVER.sub(r"\\frac{\1}{\2}", text))
    text = _SCALE.sub(_scale, _PERCENT.sub("%", text))
    if _NOTHING.fullmatch(text):
        return r"\emptyset"
    text = _WORD.sub(_word, text)
    text = text if "\\begin" in text else text.replace("\\\\", ",")
    if ":" in text:  # 2:15 p.m.
        text = _CLOCK.sub(lambda match: rf"\text{{{match[1].lower()}m}}", text)
    text = " ".join(_THOUSANDS.sub(lambda match: match[0].replace(" ", ""), text).split())
    if "," not in text:
        return text
    depths = depths_of(text)  # within brackets a comma stands between two things

    def without_commas(match: re.Match[str]) -> str:
        return match[0] if depths[match.start()] else match[0].replace(",", "")

    return _COMMAS.sub(without_commas, text)


def _scale(match: re.Match[str]) -> str:
    """A number with a word of scale ("5 million") as its product with a power of ten."""
    rest = "\\text{" if match[2] and not match[4] else ""
    return f"{match[1]}*10^{SCALES[match[3]]}{rest}"


def _word(match: re.Match[str]) -> str:
    """The name of a function or constant with its backslash; upright text stays as it is."""
    if match[1] is None:
        return match[0]
    return WORDS.get(match[1].lower(), f"\\{match[1].lower()} ")


def _text(match: re.Match[str]) -> str:
    """Upright text that is a function, a connective or a number with a unit, as such."""
    content = match[1].strip(" .,;")
    if content in ("e", "i") or not re.search("[A-Za-z]", content):
        return content if content in ("e", "i") else match[1]
    if quantity := _QUANTITY.fullmatch(content):
        return rf"{quantity[1]}\text{{{quantity[2]}}}"
    if content.lower() in _CONNECTIVES:
        return _CONNECTIVES[content.lower()]
    if content in (*FUNCTIONS, "lcm", "gcd"):
        return f"\\{content} "
    return rf"\text{{{content}}}"


_BRACKET = re.compile(r"\\(?:begin|end|langle|rangle|lfloor|lceil|rfloor|rceil|[{}])|[(\[{)\]}]")
_OPENING = frozenset(("\\begin", "\\langle", "\\lfloor", "\\lceil", "\\{", "(", "[", "{"))


def split_at(sign: re.Pattern[str], text: str) -> tuple[list[str], list[str]]:
    """Split text at signs outside brackets: the stripped pieces, and the signs between them."""
    if sign.search(text) is None:
        return [text.strip()], []
    depths = depths_of(text)
    pieces: list[str] = []
    signs: list[str] = []
    start = 0
    for match in sign.finditer(text):
        if depths[match.start()] == 0:
            pieces.append(text[start : match.start()].strip())
            signs.append(match[0].strip())
            start = match.end()
    return [*pieces, text[start:].strip()], signs


def peeled(text: str) -> str:
    """Remove outer braces, and outer round brackets unless they contain a comma."""
    text = text.strip()
    while len(text) > 1 and (text[0], text[-1]) in (("{", "}"), ("(", ")")) and text[-2:] != "\\}":
        depth = end = 0  # end: where the text's first bracket is closed
        for match in _BRACKET.finditer(text):
            depth += 1 if match[0] in _OPENING else -1
            if depth <= 0:
                end = match.end()
                break
        if end != len(text) or (text[0] == "(" and "," in text):
            return text
        text = text[1:-1].strip()
    return text


def depths_of(text: str) -> list[int]:
    """Number of brackets that are open at each character. Any closing bracket closes any opening
    one, because of half-open intervals."""
    depths = [0] * len(text)
    depth = place = 0
    for match in _BRACKET.finditer(text):
        depths[place : match.start()] = [depth] * (match.start() - place)
        is_opening = match[0] in _OPENING
        depth = depth + 1 if is_opening else max(depth - 1, 0)
        inner = depth if is_opening else depth + 1
        depths[match.start() : match.end()] = [inner] * len(match[0])
        place = match.end()
    depths[place:] = [depth] * (len(text) - place)
    return depths
