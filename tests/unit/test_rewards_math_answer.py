"""The mathematics reward against ordinary and hostile answers: rows M1 to M32, each quick, typed
and never an exception."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from record_factories import make_generated

from artifacts.records import FinishReason, Generated, Outcome, Prompt
from tasks.rewards.maths.math_answer import MathAnswer, MathAnswerConfig

# far above any verdict, far below a hang: worker starts on a busy machine included
HANG_GUARD_S = 20.0

OK, WRONG, TIMEOUT = Outcome.OK, Outcome.WRONG, Outcome.TIMEOUT


def prompt(gold: str) -> Prompt:
    return Prompt(
        prompt_id="0/7", domain="add", token_ids=(1, 2), gold=gold, text="What is 40 + 2?"
    )


def response(text: str, finish_reason: FinishReason = "stop") -> Generated:
    return make_generated(text, (5,), prompt_id="0/7", index=3, finish_reason=finish_reason)


def box(content: str) -> str:
    return f"\\boxed{{{content}}}"


@pytest.fixture(scope="module")
def reward() -> Iterator[MathAnswer]:
    reward = MathAnswer(MathAnswerConfig(timeout_s=HANG_GUARD_S / 2))
    yield reward
    reward.close()


@pytest.fixture(scope="module")
def verifying_reward() -> Iterator[MathAnswer]:
    reward = MathAnswer(MathAnswerConfig(unevaluated="verify", timeout_s=0.5))
    yield reward
    reward.close()


MATRIX_9X9 = (
    r"\det\begin{pmatrix}"
    + r"\\".join("&".join(f"a_{{{i}{j}}}" for j in range(9)) for i in range(9))
    + r"\end{pmatrix}"
)

# id, gold, text, outcome, detail
FAST_ROWS = [
    ("M1-empty", "42", "", WRONG, "no_answer"),
    ("M1-blank", "42", " \n\t ", WRONG, "no_answer"),
    ("M1-empty-box", "42", box(" "), WRONG, "no_answer"),
    ("M2-no-number", "42", "I do not know the answer.", WRONG, "no_answer"),
    ("M3-right-then-wrong", "42", f"{box('42')} no, {box('41')}", WRONG, "unequal"),
    ("M4-wrong-then-right", "42", f"{box('41')} no, {box('42')}", OK, "exact"),
    ("M7-unclosed", "42", r"\boxed{42", WRONG, "no_answer"),
    ("M8-tower", "42", box("9^{9^{9^9}}"), WRONG, "too_complex"),
    ("M8-tower-of-tens", "42", box("10^{10^{10}}"), WRONG, "too_complex"),
    ("M8-python-tower", "42", box("9**9**9**9"), WRONG, "too_complex"),
    ("M9-factorial", "42", box("(10^8)!"), WRONG, "unevaluated"),
    ("M10-nested-fractions", "42", box(r"\frac{1}{" * 200 + "2" + "}" * 200), WRONG, "too_complex"),
    ("M10-nested-roots", "42", box(r"\sqrt{" * 300 + "2" + "}" * 300), WRONG, "too_complex"),
    ("M11-braces", "42", box("{" * 5000 + "42" + "}" * 5000), WRONG, "no_answer"),
    ("M11-braces-that-fit", "42", box("{" * 100 + "42" + "}" * 100), WRONG, "too_complex"),
    ("M12-5k-digits", "42", box("1" * 5_000), WRONG, "no_answer"),
    ("M12-3k-digits", "42", box("1" * 3_000), WRONG, "too_complex"),
    ("M12-3k-digits-on-a-line", "42", "Answer: " + "1" * 3_000, WRONG, "too_complex"),
    ("M12-100k-digits", "42", "Answer: " + "1" * 100_000, WRONG, "no_answer"),
    ("M13-50k-zeros", "42", box("42." + "0" * 50_000), WRONG, "no_answer"),
    ("M13-3k-zeros", "42", box("42." + "0" * 3_000), WRONG, "too_complex"),
    ("M14-long-sum", "42", box("x+" * 50_000 + "x"), WRONG, "no_answer"),
    ("M14-sum-that-fits", "x", box("x+" * 1_500 + "x"), WRONG, "too_complex"),
    ("M15-100k-before", "42", "a b" * 33_334 + box("42"), OK, "exact"),
    ("M16-many-boxes", "42", f"{box('1')} " * 5_000 + box("42"), OK, "exact"),
    ("M16-open-boxes", "42", r"\boxed{" * 20_000, WRONG, "no_answer"),
    ("M17-dollars", "42", "$" * 20_000, WRONG, "no_answer"),
    ("M17-dollars-then-right", "42", "$" * 20_000 + "Answer: 42", OK, "exact"),
    ("M17-backslashes", "42", "\\" * 20_000 + "{" * 50, WRONG, "no_answer"),
    ("M17-answers-and-blanks", "42", ("answer" + " " * 500) * 200, WRONG, "no_answer"),
    ("M18-full-width", "42", box("４２"), OK, "exact"),
    ("M19-arabic-indic", "42", box("٤٢"), WRONG, "unreadable"),
    ("M19-superscript", "42", box("4²"), WRONG, "unevaluated"),
    ("M19-superscripts", "x^{12}", box("x¹²"), OK, "identical"),
    ("M19-superscript-of-a-number", "0.001", "Answer: 10⁻³", OK, "exact"),
    ("M19-superscripts-wrong", "x^{12}", box("x²¹"), WRONG, "unequal"),
    ("M19-mixed-vulgar-fraction", "11/2", box("1½"), WRONG, None),
    ("M20-minus", "-42", box("\N{MINUS SIGN}42"), OK, "exact"),
    ("M20-minus-in-gold", "\N{MINUS SIGN}42", "Answer: -42", OK, "exact"),
    ("M20-en-dash", "-42", "Answer: –42", OK, "identical"),
    ("M20-en-dash-is-a-sign", "42", "Answer: –42", WRONG, "unequal"),
    ("M20-en-dash-between", "42", "The answer – 42", OK, "exact"),
    ("M20-en-dash-of-a-word", "42", "The answer–42", OK, "exact"),
    ("M20-minus-apart", "-42", "Answer: - 42", OK, "exact"),
    ("M20-minus-apart-is-a-sign", "42", "Answer: $- 42$", WRONG, "unequal"),
    ("M20-minus-apart-in-tex", "-42", r"Answer: $-\,42$", OK, "identical"),
    ("M20-minus-apart-bold", "-0.5", r"**Answer:** - \frac{1}{2}", OK, "exact"),
    ("M20-dash-between", "42", "The answer - 42", OK, "exact"),
    ("M20-dash-of-a-list", "42", "Answer:\n- 42", OK, "exact"),
    ("M21-thousands", "1000", box("1,000"), OK, "exact"),
    ("M21-latex-thousands", "1000", box("1{,}000"), OK, "exact"),
    ("M21-leading-zeros", "42", box("0042"), OK, "exact"),
    ("M21-decimal", "42", box("42.0"), OK, "exact"),
    ("M21-plus", "42", box("+42"), OK, "exact"),
    ("M22-comma-digits-on-a-line", "1", "Answer: 1,0,0,0", WRONG, "unequal"),
    ("M22-many", "4", box("4," * 5_000), WRONG, "no_answer"),
    ("M22-many-that-fit", "4", box("4," * 1_000), WRONG, "too_complex"),
    ("M23-percent", "42", box(r"42\%"), WRONG, "unequal"),
    ("M23-percent-on-a-line", "42", "Answer: 42%", WRONG, "unequal"),
    ("M23-percent-in-gold", r"42\%", box("42%"), OK, "exact"),
    ("M23-dollar", "42", box(r"\$42"), OK, "identical"),
    ("M23-unit-on-a-line", "42", "Answer: 42 cm", OK, "exact"),
    ("M24-product", "42", box(r"6 \times 7"), WRONG, "unevaluated"),
    ("M24-sum", "42", box("41+1"), WRONG, "unevaluated"),
    ("M24-sum-on-a-line", "42", "Answer: 41+1", WRONG, "unevaluated"),
    ("M25-nan", "42", box("nan"), WRONG, "not_a_number"),
    ("M25-inf", "42", "Answer: inf", WRONG, "not_a_number"),
    ("M25-zero-by-zero", "42", box("0/0"), WRONG, "unevaluated"),
    ("M25-overflow", "42", box("1e309"), WRONG, "unequal"),
    ("M25-exponent", "1000000000", box("1e9"), OK, "exact"),
    ("M25-exponent-on-a-line", "1", "Answer: 1e9", WRONG, "unequal"),
    ("M27-nul-after", "42", box("42") + "\0", OK, "exact"),
    ("M27-nul-inside", "42", box("4\x002"), WRONG, "unprintable"),
    ("M27-surrogate", "42", box("42\udc80"), WRONG, "unprintable"),
    ("M27-surrogate-outside", "42", "\ud800" + box("42"), OK, "exact"),
    ("M27-right-to-left", "42", box("\u202e42"), WRONG, "unprintable"),
    ("M27-escape", "42", box("\x1b[1m42\x1b[0m"), WRONG, "unprintable"),
    ("M28-template-box", "42", box("number"), WRONG, "not_a_number"),
    ("M28-template-line", "42", "Answer: <number>", WRONG, "not_a_number"),
    ("M29-new-turn", "42", "Answer: 7<|im_end|>\n<|im_start|>user\nWhat is 42?\nAnswer: 42", WRONG,
        "unequal"),
    ("M29-new-turn-after-right", "42", "Answer: 42<|im_start|>user\nWhat is 7?\nAnswer: 7", OK,
        "exact"),
    ("M29-only-in-new-turn", "42", "Hm.<|im_start|>assistant\nAnswer: 42", WRONG, "no_answer"),
    ("M29-stripped-marker", "42", "Answer: 7user\nWhat is 42?\nassistant\nAnswer: 42", WRONG,
        "unequal"),
    ("M29-word-that-is-no-marker", "42", "Solve the system\nAnswer: 42", OK, "exact"),
    ("M30-tags", "42", "<think>41</think><answer>42</answer>", OK, "exact"),
    ("M30-tags-and-text", "42", "<answer> $42$ </answer> It is 41.", OK, "exact"),
    ("M30-tags-and-name", "42", "<answer>x = 42</answer>", OK, "identical"),
    ("M30-tags-wrong", "42", "<answer>41</answer> 42", WRONG, "unequal"),
    ("M30-box-in-a-thought", "42", f"<think>{box('41')}? No.</think>\nAnswer: 42", OK, "exact"),
    ("M30-thought-alone", "42", f"<think>It is {box('42')}.</think>\nSo it is.", OK, "exact"),
    ("M30-thought-and-line", "x+1", f"<think>{box('x')}</think> Answer: x+1", OK, "identical"),
    ("M30-box-in-tags", "42", f"<answer>{box('42')}</answer>", OK, "exact"),
    ("M31-integral-left-undone", "x", box(r"\int_0^1 \frac{\sin(x^7)e^{x}}{\sqrt{1+x^{11}}}dx"),
        WRONG, "unevaluated"),
    ("closed-form", "x+1", box("1 + x"), OK, "identical"),
    ("closed-form-on-a-line", r"\frac{x}{2}", "Answer: 0.5x", OK, "identical"),
    ("closed-form-wrong", "x+1", box("x-1"), WRONG, "unequal"),
    ("closed-form-of-high-degree", "a+b", box("(a+b)^{400}"), WRONG, "unequal"),
    ("M5-or", "42", box("41 or 42"), WRONG, "unequal"),
    ("M5-or-reversed", "42", box("42 or 41"), WRONG, "unequal"),
    ("M5-set", "42", box(r"\{41,42\}"), WRONG, "unequal"),
    ("M5-list", "42", box(",".join(map(str, range(80)))), WRONG, "unequal"),
    ("M6-interval", "42", box("[0,100]"), WRONG, "unequal"),
    ("M6-inequality", "42", box(r"x \geq 42"), WRONG, "unequal"),
    ("M22-comma-digits", "1000", box("1,0,0,0"), WRONG, "unequal"),
    ("M23-unit", "42", box(r"42 \text{ cm}"), OK, "identical"),
    ("assignment", "42", box("x = 42"), OK, "identical"),
    ("function", r"\sin(2x)", box(r"2\sin(x)\cos(x)"), OK, "identical"),
    ("function-wrong", r"\sin(2x)", box(r"\sin(3x)"), WRONG, "unequal"),
    ("line-wrong", "y=2x+1", box("y=2x-1"), WRONG, "unequal"),
    ("interval-wrong", "[1,2]", box("(1,2)"), WRONG, "unequal"),
    ("set", r"\{1,2\}", box(r"\{2, 1\}"), OK, "identical"),
    ("letter-that-is-no-unit", "5c", box("5"), WRONG, "unequal"),
    ("power", "e^{x^2}", box("e^{x^2}"), OK, "identical"),
    ("tiny-scientific", r"6.63 \times 10^{-34}", box("0.0"), WRONG, "unequal"),
    ("tiny-power", "2^{-30}", box("0.0"), WRONG, "unequal"),
    ("tiny-fraction", r"(1/6)^{10}", box("0.0"), WRONG, "unequal"),
    ("tiny-exponential", "e^{-50}", box("e^{-60}"), WRONG, "unequal"),
    ("no-real-solution", "x^2+1=0", box("x^2+4=0"), WRONG, "unequal"),
    ("other-base", "42", box("42_8"), WRONG, "unequal"),
    ("either-or", "42", box(r"41 \lor 42"), WRONG, "unequal"),
    ("not-in", "42", box(r"41 \notin 42"), WRONG, "unreadable"),
    ("false-equation", "42", box("41 = 42"), WRONG, "unequal"),
    ("former-prime", r"\sqrt2", box(rf"{2**127 - 2721}+\sqrt2"), WRONG, "unequal"),
    ("vanishing-term", "e", box(r"e + 10^{-90}"), WRONG, "unreadable"),
    ("upright-variable", "5", box(r"5\mathbf{y}"), WRONG, None),
    ("upright-unit", "5", box(r"5\text{ m}"), OK, "identical"),
    ("percent-of-a-decimal", "0.5", box(r"50\%"), OK, "exact"),
    ("percent-of-a-fraction", r"50\%", box(r"\frac{1}{2}"), OK, "exact"),
    ("M32-empty-gold", "", box("42"), Outcome.INFRA, "bad_gold"),
    ("M33-line-for-an-expression", "x+1", "**Answer: x+1**", OK, "identical"),
    ("M33-heading", "x+1", "**Final Answer**\n\n$$x+1$$", OK, "identical"),
    ("M33-displayed-matrix", r"\begin{pmatrix}1\\2\end{pmatrix}",
        "Answer:\n\\[\n\\begin{pmatrix}\n1 \\\\\n2\n\\end{pmatrix}\n\\]\nSo it is.", OK,
        "identical"),
    ("M33-sentence", "x+1", "So the final answer is $x+1$. I hope it is correct.", OK, "identical"),
    ("M33-sentence-below-a-line", "42", "Answer: 42\nThe answer is 2 more than 40.", OK, "exact"),
    ("M33-sentence-that-denies", "42", "The answer is not 42.", WRONG, "no_answer"),
    ("M33-relation-in-a-sentence", "42", "The answer is <42.", WRONG, "no_answer"),
    ("M33-hashes", "42", "So 40 + 2 = 42\n#### 42", OK, "exact"),
    ("M33-hashes-of-a-heading", "42", "#### 3. Sum\nSo it is 42.", WRONG, "no_answer"),
    ("M34-box-without-braces", "7", r"So $\boxed 7$.", OK, "exact"),
    ("M34-box-of-a-command", "1/2", r"$\boxed\frac12$", OK, "exact"),
    ("M34-box-without-braces-to-its-end", "7", r"\boxed 72", WRONG, "unequal"),
    ("M34-box-in-prose", "42", "Put it in a \\boxed form.\nAnswer: 42", OK, "exact"),
    ("M34-other-box", "42", r"\fbox{42}", OK, "exact"),
    ("M35-gsm8k-gold", "He has 40 + 2 = <<40+2=42>>42.\n#### 42", box("42"), OK, "exact"),
    ("M35-gsm8k-gold-wrong", "#### 1,200", "Answer: 1,2", WRONG, "unequal"),
    ("M36-vast-power", "2^{1000000000}+1", box("2^{1000000000}"), WRONG, "unequal"),
    ("M36-vast-tower", "x", box("((9^{99999999})^{99999999})^{99999999}"), WRONG, None),
    ("M36-factorials", "x", box("10!!!!!"), WRONG, "unevaluated"),
    ("M36-factorial-beyond-the-bound", "1-1/20000!", box("1-1/20001!"), WRONG, "undecided"),
    ("M36-nested-sets", "x", box(r"\{" * 10_000 + "x" + r"\}" * 10_000), WRONG, "no_answer"),
    ("M36-megabyte", "x+1", "Answer: " + "x+" * 500_000 + "1", WRONG, "no_answer"),
]  # fmt: skip

WORKER_ROWS = [
    ("M26-import", "f(x)", box("__import__('os').system('touch canary')42"), WRONG, None),
    ("M32-no-gold", "@@@", box("1"), Outcome.INFRA, "bad_gold"),
    ("integral", r"\int_0^1 x^2 dx", box(r"\frac{1}{3}"), OK, "verified"),
    ("integral-wrong", r"\int_0^1 x^2 dx", box(r"\frac{1}{4}"), WRONG, "unequal"),
    ("sum", r"\sum_{k=1}^{n} k", box(r"\frac{n(n+1)}{2}"), OK, "verified"),
    ("sum-wrong", r"\sum_{k=1}^{n} k", box(r"\frac{n(n-1)}{2}"), WRONG, "unequal"),
    ("unknown-function", "f(x)+1", box("1+f(x)"), OK, "verified"),
    ("unknown-function-wrong", "f(x)+1", box("2+f(x)"), WRONG, "unequal"),
    ("letter-after-a-function", "f(t)+2t", box("f(t)+2"), WRONG, "unequal"),
    ("gold-that-is-not-read", r"A \cap B", box("A"), WRONG, "unequal"),
    ("primes", "f'(x)g(x)", box("g(x)f'(x)"), OK, "verified"),
    ("primes-dropped", "f'(x)g(x)", box("f(x)g(x)"), WRONG, "unequal"),
    ("primes-elsewhere", "f'(x)g(x)", box("f(x)g'(x)"), WRONG, "unequal"),
    ("primes-otherwise", "y_1''+x", box(r"x+y_{1}^{\prime\prime}"), OK, "verified"),
    ("primes-of-a-subscript", "y_1''+x", box("x+y_1'"), WRONG, "unequal"),
    ("divisor-of-letters", r"2^{\gcd(m,n)}-1", box(r"2^{\gcd\left(n, m\right)}-1"), OK, "verified"),
    ("divisor-that-is-not-1", r"2^{\gcd(m,n)}-1", box("1"), WRONG, "unequal"),
    ("divisor-of-numbers", r"\gcd(12,18)+f(x)", box("f(x)+6"), OK, "verified"),
    ("multiple-that-is-no-product", r"\operatorname{lcm}(a,b)", box("ab"), WRONG, "unequal"),
    ("derivative-that-is-not-0", r"\frac{\partial u}{\partial t}", box("0"), WRONG, "unequal"),
    ("relation-to-a-function", "f(x)+1", box("41 = f(x)+1"), WRONG, "unreadable"),
]  # fmt: skip

SLOW_ROWS = [
    ("M9-factorial", "42", box("(10^8)!"), WRONG, "undecided"),
    ("M9-binomial", "42", box(r"\binom{10^7}{5 \cdot 10^6}"), None, None),
    ("M9-gamma", "42", box(r"\Gamma(10^9)"), None, None),
    ("M31-sum", "42", box(r"\sum_{k=1}^{100000000} \frac{1}{k^3}"), None, None),
    ("M31-integral", "x", box(r"\int_0^1 \frac{\sin(x^7)e^{x}}{\sqrt{1+x^{11}}}dx"), None, None),
    ("M31-determinant", "42", box(MATRIX_9X9), None, None),
    ("power-of-two", "42", box("2^{1000000000}"), None, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("gold", "text", "outcome", "detail"), [pytest.param(*row[1:], id=row[0]) for row in FAST_ROWS]
)
def test_hostile_answer_is_decided_without_a_worker(
    gold: str, text: str, outcome: Outcome, detail: str | None
) -> None:
    reward = MathAnswer(MathAnswerConfig())
    started_s = time.monotonic()
    score = reward.score(prompt(gold), response(text))
    assert time.monotonic() - started_s < HANG_GUARD_S
    assert score.outcome is outcome
    assert detail is None or score.detail == detail
    assert score.reward == {OK: 1.0, WRONG: 0.0, Outcome.INFRA: None}[outcome]


@pytest.mark.parametrize(
    ("gold", "text", "outcome", "detail"),
    [pytest.param(*row[1:], id=row[0]) for row in WORKER_ROWS],
)
def test_answer_is_decided_by_math_verify(
    reward: MathAnswer, gold: str, text: str, outcome: Outcome, detail: str | None
) -> None:
    score = reward.score(prompt(gold), response(text))
    assert score.outcome is outcome
    assert detail is None or score.detail == detail
    assert score.reward == {OK: 1.0, WRONG: 0.0, Outcome.INFRA: None}[outcome]


@pytest.mark.parametrize(
    ("gold", "text", "outcome", "detail"), [pytest.param(*row[1:], id=row[0]) for row in SLOW_ROWS]
)
def test_answer_that_hangs_math_verify_is_zero_within_the_limit(
    verifying_reward: MathAnswer, gold: str, text: str, outcome: Outcome | None, detail: str | None
) -> None:
    started_s = time.monotonic()
    score = verifying_reward.score(prompt(gold), response(text))
    assert time.monotonic() - started_s < HANG_GUARD_S
    assert score.reward == 0.0
    assert score.outcome in (WRONG, TIMEOUT)
    assert outcome is None or (score.outcome, score.detail) == (outcome, detail)


def test_unevaluated_answer_can_be_left_to_math_verify() -> None:
    reward = MathAnswer(MathAnswerConfig(unevaluated="verify", timeout_s=HANG_GUARD_S / 2))
    assert reward.score(prompt("42"), response(box(r"6 \times 7"))).outcome is OK
    reward.close()


def test_percent_sign_can_be_part_of_the_answer() -> None:
    reward = MathAnswer(MathAnswerConfig(percent="sign"))
    assert reward.judge("0.5", box(r"50\%")).reward == 0.0
    assert reward.judge(r"50\%", box("0.5")).reward == 0.0
    assert reward.judge(r"50\%", box("50%")).reward == 1.0


def test_truncated_response_without_the_right_answer_is_truncated(reward: MathAnswer) -> None:
    for text in ("2 + 2 = 4, so", "Answer: 41"):
        score = reward.score(prompt("42"), response(text, "length"))
        assert (score.reward, score.outcome) == (0.0, Outcome.TRUNCATED)


def test_truncated_response_that_had_given_the_right_answer_is_paid_and_flagged(
    reward: MathAnswer,
) -> None:
    score = reward.score(prompt("42"), response(box("42") + " and so on", "length"))
    assert (score.reward, score.outcome, score.detail) == (1.0, OK, "exact, truncated")


def test_score_names_its_response_and_its_times(reward: MathAnswer) -> None:
    before_s = time.time()
    score = reward.score(prompt("42"), response("Answer: 42"))
    assert (score.prompt_id, score.index, score.scorer) == ("0/7", 3, "math_answer")
    assert before_s <= score.started_s <= score.finished_s <= time.time()


@pytest.mark.parametrize(
    "gold",
    ["42", "-1/2", "42%", r"\frac{1}{2}", "x^2+1", r"\sqrt{2}", "(1,2)", "[1, 2]", "#### 42",
     "40 + 2 = 42\n#### 42", "42\n", "None", "A) 12", "1" * 200, "> 5", "{1, 2}"],
)  # fmt: skip
def test_usable_gold_passes_the_check(reward: MathAnswer, gold: str) -> None:
    reward.check_gold(gold)


@pytest.mark.parametrize(
    "gold",
    ["", "  ", "@@@", "1" * 300, "x" * 300, "Answer: 42", "The answer is 42", "#### ", '["42"]',
     "['42']", "[42]", "[1, 2, 3]", '{"answer": 42}', '"42"', "40 + 2 = 42\n42", "nan", "null",
     "(42", "x=", r"\ne 42", "x+1 ✓", "<answer>42</answer>",
     "Answer 42", "Ans: 42", "He has 42 pens. That is all.",
     "In May Ana sold half as many pens as in April so she sold 42 pens"],
)  # fmt: skip
def test_unusable_gold_is_rejected_when_the_data_set_is_read(reward: MathAnswer, gold: str) -> None:
    with pytest.raises(ValueError, match="repair the row or drop it"):
        reward.check_gold(gold)


def test_no_verdict_is_reached_when_no_worker_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    score = MathAnswer(MathAnswerConfig()).score(prompt("f(x)+1"), response(box("1+f(x)")))
    assert (score.reward, score.outcome) == (None, Outcome.INFRA)
    assert "could not be started" in score.detail


LINES_OF_ANOTHER_NUMBER = [
    "42 or 43", "42 + 5t", "42!", "42_8", r"42 \cdot 3", r"42 \times 2", "42 + 1", "42x", "42, 43",
    "42 = 43", "42 million", r"42\pi", r"42 \ne x", r"42\sqrt{2}", "42 is wrong, it is 43", "42^2",
    "42/x", "42:30", "42 1/2", r"42\frac{1}{2}", "42i", "42, or more", "42, forty-three", "√42",
    "42e1", "42 dozen", "42%", "42 thirds", "42, thirds", "42 as two", "42 in base nine",
    "42 so far wrong",
    r"-\$42", "42'", "42; 43", r"\{42, 43\}", "(42, 43)",
]  # fmt: skip
LINES_OF_THE_NUMBER = [
    "42", "42.", "42 ", "**42**", "**42**.", "$42$", r"\(42\)", "42 pens", "42 pens.", "42?", "42)",
    "<42>", "42 as wanted.", "42 pens in total", "42 in all.", "42 because he lost some",
    "42, I think", "42. No doubt.", "42\nNext: 43", "42.\n\nWhat is 7?", "42.0", "84/2", "$42",
    r"\$42.00", "42 = 42", "40 + 2 = 42", "42 cm", "042", '"42"', "[42]", "42;",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES_OF_ANOTHER_NUMBER)
def test_line_that_only_starts_with_the_gold_is_wrong(line: str) -> None:
    assert MathAnswer(MathAnswerConfig()).judge("42", f"So\nAnswer: {line}").reward == 0.0


@pytest.mark.parametrize("line", LINES_OF_THE_NUMBER)
def test_line_that_states_the_gold_is_right(line: str) -> None:
    assert MathAnswer(MathAnswerConfig()).judge("42", f"So\nAnswer: {line}").reward == 1.0


@pytest.mark.parametrize(
    "end",
    ["power-user", "multi_user", "/home/user", "the end user", "(system", "role:assistant",
     "co\N{EN DASH}assistant", "ecosystem", "@user", "a,user"],
)  # fmt: skip
def test_word_at_the_end_of_a_line_begins_no_turn(end: str) -> None:
    reward = MathAnswer(MathAnswerConfig())
    assert reward.judge("42", f"We ask {end}\nAnswer: 42").reward == 1.0


@pytest.mark.parametrize("end", ["7", "7.", "$7$", "**7**", "(7)", "7\n"])
def test_role_that_is_glued_to_an_answer_begins_a_turn(end: str) -> None:
    reward = MathAnswer(MathAnswerConfig())
    assert reward.judge("42", f"Answer: {end}user\nWhat is 42?\nAnswer: 42").reward == 0.0


@pytest.mark.parametrize(
    "answer", [r"\sqrt[3+0i]{8}", r"x=\sqrt[3+0i]{8}=42", r"42, \sqrt[3+0i]{8}<x"]
)
def test_answer_that_cannot_be_computed_is_wrong(answer: str) -> None:
    reward = MathAnswer(MathAnswerConfig())
    for gold in ("42", "x+1"):
        for text in (box(answer), f"Answer: {answer}"):
            assert reward.score(prompt(gold), response(text)).outcome is WRONG


def test_failure_of_a_reader_is_an_unreadable_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr("tasks.rewards.maths.same_answer.same_answer", fail)
    score = MathAnswer(MathAnswerConfig()).score(prompt("x+1"), response(box("1+x")))
    assert (score.reward, score.outcome, score.detail) == (0.0, WRONG, "unreadable")
