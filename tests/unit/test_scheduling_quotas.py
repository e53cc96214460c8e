"""Slots of a short round by domain: shares of the launched mix, rounded as the round goes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tasks.scheduling.events import PromptRef, Quota
from tasks.scheduling.quotas import RemainingQuotas, domain_quotas

launched_domains = st.lists(st.sampled_from("abcd"), min_size=1, max_size=40)


def prompts_of(domains: list[str]) -> list[PromptRef]:
    return [PromptRef(prompt_id=str(place), domain=domain) for place, domain in enumerate(domains)]


def test_quotas_are_the_shares_of_the_launched_mix_rounded_either_way() -> None:
    assert domain_quotas(prompts_of(["add"] * 5 + ["letters"] * 4 + ["rare"]), 8) == (
        Quota(domain="add", least=4, most=4),
        Quota(domain="letters", least=3, most=4),
        Quota(domain="rare", least=0, most=1),
    )
    assert domain_quotas(prompts_of(["add"] * 5), 4) == (Quota(domain="add", least=4, most=4),)


def test_the_first_to_finish_has_its_share_rounded_up() -> None:
    # 4.8, 1.6, 1.6
    slots = RemainingQuotas(
        domain_quotas(prompts_of(["code"] * 6 + ["story"] * 2 + ["add"] * 2), 8), 8
    )
    assert (slots.num_free, slots.is_free("story")) == (8, True)
    for domain in ["story", "story", "add", "add"]:
        assert slots.is_free(domain)
        slots.take(domain)
    assert [slots.is_free(domain) for domain in ("story", "add", "code")] == [False, False, True]
    for _ in range(4):
        slots.take("code")
    assert (slots.num_free, slots.is_free("code")) == (0, False)  # its fifth is put off


@given(launched_domains, st.data())
def test_every_order_of_finishing_fills_the_round_within_the_quotas(
    domains: list[str], data: st.DataObject
) -> None:
    prompts = prompts_of(domains)
    num_accepted = data.draw(st.integers(1, len(prompts)))
    quotas = domain_quotas(prompts, num_accepted)
    slots, accepted = RemainingQuotas(quotas, num_accepted), Counter[str]()
    for ref in data.draw(st.permutations(prompts)):
        if slots.is_free(ref.domain):
            slots.take(ref.domain)
            accepted[ref.domain] += 1
    assert (slots.num_free, accepted.total()) == (0, num_accepted)
    shares = {
        domain: num_accepted * count / len(domains) for domain, count in Counter(domains).items()
    }
    assert all(abs(accepted[domain] - share) < 1 for domain, share in shares.items())


@given(launched_domains, st.data())
def test_prompts_that_are_given_up_leave_as_many_slots_as_the_others_can_fill(
    domains: list[str], data: st.DataObject
) -> None:
    prompts = prompts_of(domains)
    num_accepted = data.draw(st.integers(1, len(prompts)))
    slots, undecided, accepted = (
        RemainingQuotas(domain_quotas(prompts, num_accepted), num_accepted),
        Counter(domains),
        0,
    )
    for ref in data.draw(st.permutations(prompts)):
        undecided[ref.domain] -= 1
        if data.draw(st.booleans()):
            slots.give_up(undecided)
        elif slots.is_free(ref.domain):
            slots.take(ref.domain)
            accepted += 1
        else:
            undecided[ref.domain] += 1  # complete, waiting for a slot that somebody gives up
        assert slots.num_free <= min(num_accepted - accepted, undecided.total())
        assert sum(
            min(undecided[domain], 1) for domain in undecided if slots.is_free(domain)
        ) >= min(slots.num_free, 1)
