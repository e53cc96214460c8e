"""What `cluster.roles` says: which devices do what, and how many workers environments have. Pure.

    "rollout: 0-1, learner: 0-1, judge: 1, environment: 2"

Leaves out whether the machine has these devices (`devices`).
"""

from __future__ import annotations

from typing import Literal

DeviceRole = Literal["rollout", "learner", "judge"]
ROLES: tuple[DeviceRole, ...] = ("rollout", "learner", "judge")
REQUIRED: tuple[DeviceRole, ...] = ("rollout", "learner")
MOST_DEVICES = 100_000  # of any cluster: a slip of the pen shall not fill the memory
ENVIRONMENT = "environment"  # the role without a device: it has a number of workers


def parse_role_map(roles: str) -> dict[DeviceRole, tuple[int, ...]]:
    """ "rollout: 0-1,4; learner: 0" -> device numbers by role. Parts are separated by ';' or by a
    comma before a role's name. Leaves out the environment workers, which have no device."""
    parsed: dict[DeviceRole, tuple[int, ...]] = {}
    for part in _role_parts(roles):
        name, _, ranges = part.partition(":")
        if name.strip() == ENVIRONMENT:
            continue
        role = next((known for known in ROLES if known == name.strip()), None)
        if role is None or not ranges.strip():
            raise ValueError(
                "roles must read like 'rollout: 0-1, learner: 0-1' with roles"
                f" {', '.join((*ROLES, ENVIRONMENT))}, got {part!r} in {roles!r}"
            )
        if role in parsed:
            raise ValueError(f"roles names {role!r} twice in {roles!r}; join its device ranges")
        parsed[role] = parse_ranges(ranges, roles)
    missing = [role for role in REQUIRED if role not in parsed]
    if missing:
        raise ValueError(
            f"roles must place {' and '.join(REQUIRED)}, {', '.join(missing)} missing in {roles!r};"
            f" add '{missing[0]}: 0'"
        )
    return parsed


def num_environment_workers(roles: str) -> int:
    """How many workers environments have for themselves: "environment: 2" means two."""
    parts = [part.partition(":") for part in _role_parts(roles)]
    told = [number.strip() for name, _, number in parts if name.strip() == ENVIRONMENT]
    if len(told) > 1:
        raise ValueError(f"roles names {ENVIRONMENT!r} twice in {roles!r}; add their numbers up")
    if not told:
        return 0
    if not told[0].isdecimal() or int(told[0]) < 1:
        raise ValueError(
            f"the role {ENVIRONMENT} has no devices but a number of workers, like 'environment: 2',"
            f" got {told[0]!r} in {roles!r}; give a number of at least 1, or drop the role"
        )
    return int(told[0])


def _role_parts(roles: str) -> list[str]:
    parts: list[str] = []
    for piece in roles.replace(";", ",").split(","):
        if ":" in piece or not parts:
            parts.append(piece)
        else:
            parts[-1] += f",{piece}"
    return parts


def parse_ranges(ranges: str, roles: str) -> tuple[int, ...]:
    devices: list[int] = []
    for piece in ranges.split(","):
        first, dash, last = piece.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(
                f"device ranges must be numbers like 0-3,6, got {piece.strip()!r} in {roles!r}"
            )
        if int(last or first) < int(first):
            raise ValueError(
                f"device ranges must count upwards, got {piece.strip()!r} in {roles!r}; write"
                f" {last}-{first}"
            )
        if int(last or first) >= MOST_DEVICES:
            raise ValueError(
                f"device ranges must have numbers below {MOST_DEVICES}, got {piece.strip()!r} in"
                f" {roles!r}; correct it"
            )
        devices += range(int(first), int(last or first) + 1)
    if len(set(devices)) != len(devices):
        raise ValueError(
            f"device ranges must name each device once, got {ranges.strip()!r} in {roles!r}"
        )
    return tuple(devices)
